"""What ``test_distributed.py`` runs under torchrun: ``processes.py WHAT DATA OUT``."""

import os
import signal
import sys
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor, nn

from small_runs import Plain, images_file, plain, run
from transnet.errors import DataError
from transnet.train.failures import TrainingError

RANK = int(os.environ["RANK"])


class NotANumber(Plain):
    """Return NaN in the second process's seventh step."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * float("nan") if self.training and RANK == 1 and self.steps == 7 else y


def several(data: Path, out: Path) -> None:
    run(data, out / "plain", plain(), pad=2, flip=True, val_fraction=0.1)
    run(data, out / "stream", plain(), pad=2, flip=True, val_fraction=0.1, storage="stream", workers=1)
    run(data, out / "norm", epochs=5)
    run(data, out / "wide", plain(), batch_size=1, epochs=1)
    run(data, out / "past", plain(), transforms="r0", past_targets=1.0, epochs=5)
    _seen(data, out)
    try:
        run(data, out / "nan", NotANumber(), checkpoint_every=1)
    except TrainingError as error:
        (out / f"nan{RANK}.txt").write_text(str(error))
    try:
        run(images_file(out / f"{RANK}.npz", n=90 - RANK), out / "unlike", plain())
    except DataError as error:
        (out / f"unlike{RANK}.txt").write_text(str(error))


def _seen(data: Path, out: Path) -> None:
    """Write every training image that passes through this process's network to a file."""
    model, seen = plain(), []

    def keep(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if module.training:
            seen.append(args[0].detach().clone())

    model.register_forward_pre_hook(keep)
    run(data, out / "seen", model, epochs=1, pad=0, transforms="r0")
    save_file({f"{i:03d}": x for i, x in enumerate(seen)}, out / f"seen{RANK}.safetensors")


def killed(data: Path, out: Path) -> None:
    """Kill the second process in its twelfth step, but not after the restart."""
    restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
    first = restarts == "0"
    (out.parent / f"began-{restarts}-{RANK}").touch()
    run(data, out, plain(kill_at=12 if first and RANK == 1 else 0), epochs=6, checkpoint_every=1)


def stopped(data: Path, out: Path) -> None:
    """Send Ctrl-C to one process only."""
    model = plain()
    model.signals = {7: signal.SIGINT} if RANK == 1 else {}
    run(data, out, model)


def resumed(data: Path, out: Path) -> None:
    run(data, out, plain(), resume=True)


if __name__ == "__main__":
    {"several": several, "killed": killed, "stopped": stopped, "resumed": resumed}[sys.argv[1]](
        Path(sys.argv[2]), Path(sys.argv[3])
    )
