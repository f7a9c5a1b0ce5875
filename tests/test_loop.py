"""Training from settings to result: what may end it, and that it goes on as if nothing had."""

import fcntl
import json
import multiprocessing
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from data_files import encoded, noise
from small_runs import Plain, command, images_file, plain, run, settings, stopped_run, weights
from transnet import load
from transnet.train import checkpoint
from transnet.train.config import ConfigError
from transnet.train.distributed import World
from transnet.train.interrupt import Stopped
from transnet.train.loop import Trainer, TrainingError, train
from transnet.train.prepare import natural_pairs
from transnet.train.run import Run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images_file(tmp_path_factory.mktemp("data") / "x.npz")


def epochs_written(out: Path) -> list[int]:
    return [json.loads(line)["epoch"] for line in (out / "metrics.jsonl").read_text().splitlines()]


def without_times(out: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in entry.items() if k not in ("seconds", "images_per_second")}
            for entry in Run(out).read_metrics()]  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- a whole run


def test_a_run_learns_and_its_record_agrees_with_its_result(data: Path, tmp_path: Path) -> None:
    result = run(data, tmp_path / "run", epochs=12)
    assert result["test"]["pruned"]["accuracy"] > 0.8
    metrics = Run(tmp_path / "run").read_metrics()
    assert [entry["epoch"] for entry in metrics] == list(range(1, 13))
    assert [entry["step"] for entry in metrics] == [5 * epoch for epoch in range(1, 13)]
    assert metrics[-1]["test"] == result["test"]
    assert metrics[-1]["loss"][0] < 0.5 * metrics[0]["loss"][0]
    assert all(0 <= accuracy <= 1 for entry in metrics for accuracy in entry["accuracy"])
    assert result["train"]["n"] == 150


def test_the_record_of_the_first_step_is_the_fresh_networks_loss(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "run", epochs=1, batch_size=150, lr=0.0, pad=0, transforms="r0")
    net = load(tmp_path / "run").train()
    from transnet.data import open_data
    from transnet.data.augment import View

    opened = open_data(str(data))
    view = View.of(size=8, stored=8, pad=0, mean=opened.mean, std=opened.std, device=torch.device("cpu"))
    with torch.no_grad():
        logits = net(view.centre(opened.train.resident(8, progress=False)))
    entry = Run(tmp_path / "run").read_metrics()[0]
    assert entry["loss"][0] == pytest.approx(
        torch.nn.functional.cross_entropy(logits[:, 0], opened.train.labels).item(), rel=1e-4
    )
    hits = (logits[:, 0].argmax(1) == opened.train.labels).float().mean().item()
    assert entry["accuracy"][0] == pytest.approx(hits, abs=1e-6)


def test_curves_only_at_the_end_where_asked(data: Path, tmp_path: Path) -> None:
    for every, expected in ((0, [3]), (2, [2, 3]), (1, [1, 2, 3])):
        run(data, tmp_path / str(every), evaluate_every=every)
        found = [entry["epoch"] for entry in Run(tmp_path / str(every)).read_metrics() if "test" in entry]
        assert found == expected
    assert weights(tmp_path / "0") == weights(tmp_path / "1")  # looking changes nothing


def test_a_validation_split_is_measured_beside_the_test_set(data: Path, tmp_path: Path) -> None:
    result = run(data, tmp_path / "run", val_fraction=0.2, flip=True)
    assert result["val"]["pruned"]["n"] == 30
    assert result["val_flip"]["full"]["passes"] == 4
    assert result["train"]["n"] == 120
    assert result["test"]["full"]["n"] == 40
    assert Run(tmp_path / "run").read_metrics()[0]["val"]["full"]["n"] == 30
    assert run(data, tmp_path / "without")["val"] is None


@pytest.mark.parametrize("changes", [{"mixup": 0.4}, {"cutmix": 1.0}, {"mixup": 0.2, "cutmix": 1.0, "batch_size": 7}])
def test_mixing_trains_every_head(data: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    result = run(data, tmp_path / "run", epochs=4, label_smoothing=0.1, transforms="r0,r1,m1", **changes)
    assert all(np.isfinite(head["loss"]) for head in result["test"]["heads"])
    run(data, tmp_path / "plain", epochs=4, label_smoothing=0.1, transforms="r0,r1,m1",
        **{"batch_size": changes.get("batch_size", 32)})  # fmt: skip
    assert weights(tmp_path / "run") != weights(tmp_path / "plain")


@pytest.mark.parametrize("changes", [{"batch_size": 1, "epochs": 1}, {"batch_size": 1000}, {"batch_size": 149}])
def test_any_batch_size_works(data: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    assert np.isfinite(run(data, tmp_path / "run", **changes)["test"]["full"]["loss"])


@pytest.mark.parametrize("changes", [{"transforms": "r1,r2"}, {"heads": "shared"}, {"bn": "separate"}, {"init": "copy"},
                                     {"schedule": "steps", "nesterov": False}, {"momentum": 0.0},
                                     {"precision": "bf16"}])  # fmt: skip
def test_every_variant_trains_and_repeats_bit_for_bit(data: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    run(data, tmp_path / "a", **changes)
    run(data, tmp_path / "b", **changes)
    assert weights(tmp_path / "a") == weights(tmp_path / "b")


def test_training_leaves_torch_as_it_was(data: Path, tmp_path: Path) -> None:
    assert not torch.are_deterministic_algorithms_enabled()
    before = signal.getsignal(signal.SIGINT)
    run(data, tmp_path / "run", epochs=1)
    assert not torch.are_deterministic_algorithms_enabled()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("name", ["meta", "tpu", "cuda:x", "cuda:99", "GPU 0"])
def test_an_unknown_device_is_a_clear_error(data: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="--device: "):
        run(data, tmp_path / "run", device=name)


# ------------------------------------------------------------------------------------------------------------ streaming


@pytest.mark.parametrize("workers", [0, 2])
def test_streamed_and_resident_images_train_the_same_weights(data: Path, tmp_path: Path, workers: int) -> None:
    a = run(data, tmp_path / "resident", plain(), pad=2, flip=True, storage="resident")
    b = run(data, tmp_path / "stream", plain(), pad=2, flip=True, storage="stream", workers=workers)
    assert weights(tmp_path / "resident") == weights(tmp_path / "stream")
    assert a["test_flip"] == b["test_flip"]


def test_crops_without_padding_are_the_same_streamed_and_resident(tmp_path: Path) -> None:
    file = images_file(tmp_path / "x.npz", size=70, n=40, test=10)
    for storage in ("resident", "stream"):
        result = run(file, tmp_path / storage, plain(), image_size=16, storage=storage, workers=0, flip=True)
        assert result["config"]["data"]["stored_size"] == 18
    assert weights(tmp_path / "resident") == weights(tmp_path / "stream")


def test_images_that_are_not_square_are_the_same_streamed_and_resident(tmp_path: Path) -> None:
    for c in range(3):
        (tmp_path / "data" / str(c)).mkdir(parents=True)
        for i in range(6):
            pixels = noise(10 * c + i, *((30, 75) if i % 2 else (61, 20)))
            (tmp_path / "data" / str(c) / f"{i}.png").write_bytes(encoded(pixels))
    for storage in ("resident", "stream"):
        run(tmp_path / "data", tmp_path / storage, plain(channels=3), image_size=16, storage=storage, workers=0)
    assert weights(tmp_path / "resident") == weights(tmp_path / "stream")


# -------------------------------------------------------------------------------------- interrupted and resumed


@pytest.mark.parametrize("step", [1, 3, 5, 7, 14])
@pytest.mark.parametrize("changes", [{}, {"storage": "stream", "workers": 2, "mixup": 0.3}], ids=["resident", "stream"])
def test_stopped_anywhere_and_resumed_a_run_ends_bit_identically(
    data: Path, tmp_path: Path, step: int, changes: dict[str, Any]
) -> None:
    model = {"dropout": 0.4}  # what it draws must come back too
    run(data, tmp_path / "whole", plain(**model), **changes)
    stopped_run(data, tmp_path / "run", step=step, model=model, **changes)
    assert not (tmp_path / "run" / "result.json").exists()
    # Stopped again, in the next step: the record must not lose what came before.
    if step < 14:
        with pytest.raises(Stopped):
            run(data, tmp_path / "run", plain(**model, stop_at=1), resume=True, **changes)
    run(data, tmp_path / "run", plain(**model), resume=True, **changes)
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert without_times(tmp_path / "run") == without_times(tmp_path / "whole")
    assert not (tmp_path / "run" / "state").exists()


def test_stopped_in_its_last_step_a_run_has_only_to_be_measured(data: Path, tmp_path: Path) -> None:
    with pytest.raises(Stopped, match="stopped after 3 of 3 epochs; everything is saved"):
        run(data, tmp_path / "run", plain(stop_at=15))
    run(data, tmp_path / "whole", plain())
    assert measured_again(data, tmp_path / "run") == weights(tmp_path / "whole")


def measured_again(data: Path, out: Path) -> Any:
    """The weights of a run that was stopped after its last epoch, once it is resumed: which trains nothing again."""
    before = Run(out).read_metrics()
    run(data, out, plain(), resume=True)
    assert Run(out).read_metrics() == before
    return weights(out)


def test_a_wish_to_stop_after_the_last_look_is_not_lost(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transnet.train.curves.Curves.close", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped, match="stopped after 3 of 3 epochs; everything is saved"):
        run(data, tmp_path / "run", plain(), checkpoint_every=100)
    monkeypatch.undo()
    assert checkpoint.is_saved(tmp_path / "run" / "state", 15)


def test_what_is_saved_is_not_put_at_risk_by_saving_it_again(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        monkeypatch.setattr(checkpoint, "save", lambda *_: pytest.fail("written again"))
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("transnet.train.loop.result_of", stopped)
    with pytest.raises(Stopped):
        run(data, tmp_path / "run", plain(), checkpoint_every=1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_while_it_is_measured_a_run_is_saved(
    data: Path, tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), number)

    def saved(*args: Any) -> None:
        os.kill(os.getpid(), number)  # again: it is a person's, or a scheduler's that signals twice
        save(*args)

    save = checkpoint.save
    monkeypatch.setattr("transnet.train.loop.result_of", stopped)
    monkeypatch.setattr(checkpoint, "save", saved)
    with pytest.raises(Stopped, match="stopped after 3 of 3 epochs; everything is saved"):
        run(data, tmp_path / "run", plain(), checkpoint_every=100)
    monkeypatch.undo()
    run(data, tmp_path / "whole", plain())
    assert measured_again(data, tmp_path / "run") == weights(tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_stop_is_answered_with_where_the_run_stands_and_how_to_go_on(
    data: Path, tmp_path: Path, number: signal.Signals
) -> None:
    model = plain()
    model.signals = {7: number}
    with pytest.raises(Stopped, match=r"stopped after 1 of 3 epochs and 2 of 5 steps; everything is saved") as caught:
        run(data, tmp_path / "run", model)
    assert "resume=True" in str(caught.value)


KILLS = """
import hashlib, os, random, signal, sys, time
from pathlib import Path
from small_runs import settings, weights
from transnet.train.loop import train

data, folder, kills = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])

def started(out, **changes):
    pid = os.fork()
    if pid:
        return pid
    train(settings(data, out, epochs=8, resume=True, **changes), quiet=True)
    os._exit(0)

for name in ("first", "whole"):  # in this process, so that those it forks have imported everything
    start = time.monotonic()
    train(settings(data, folder / name, epochs=8), quiet=True)
    length = time.monotonic() - start
chance = random.Random(0)
same = killed = 0
for i in range(kills):
    out = folder / str(i)
    while True:
        pid = started(out, checkpoint_every=i % 3)
        time.sleep(chance.random() * length)
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        killed += os.WIFSIGNALED(status)
        if (out / "result.json").exists() or chance.random() < 0.5:
            break
    os.waitpid(started(out), 0)
    lines = (out / "metrics.jsonl").read_text().splitlines()
    same += weights(out) == weights(folder / "whole") and len(lines) == 8 and not (out / "state").exists()
print(same, killed)
"""


def test_killed_at_random_moments_and_resumed_a_run_ends_bit_identically(data: Path, tmp_path: Path) -> None:
    process = command("-c", KILLS, data, tmp_path, 12)
    said, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    same, killed = map(int, said.split())
    assert same == 12
    assert killed >= 8


def test_ctrl_c_on_the_command_line_saves_exits_1_and_its_message_is_the_command_to_go_on(
    data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "a run"
    options = ["--epochs", "80", "--batch-size", "32", "--lr", "0.05", "--device", "cpu", "--model", "resnet8-small"]
    process = command("-m", "transnet", "train", data, "--out", out, *options)
    deadline = time.monotonic() + 180
    while not (out / "metrics.jsonl").exists() or len((out / "metrics.jsonl").read_text().splitlines()) < 3:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=180)
    assert process.returncode == 1, errors
    assert "Traceback" not in errors
    assert "everything is saved. Go on with:" in errors
    assert not (out / "result.json").exists()
    assert said == ""
    words = shlex.split(errors.strip().splitlines()[-1])
    assert words[0] == "transnet"
    process = command("-m", *words)
    said, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "going on after epoch" in errors
    assert epochs_written(out) == list(range(1, 81))
    run(data, tmp_path / "whole", epochs=80)
    assert weights(out) == weights(tmp_path / "whole")
    # Not a terminal: how it began and ended, no live line, no control characters.
    assert "\x1b" not in errors
    assert "\r" not in errors
    assert len(errors.splitlines()) <= 6, errors


def test_quiet_says_nothing(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(data, tmp_path / "run", transforms="r0,m0", flip=True)
    assert capfd.readouterr() == ("", "")


def test_resuming_past_a_damaged_checkpoint_says_so(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stopped_run(data, tmp_path / "run", step=7)
    newest = tmp_path / "run" / "state" / "00000007" / "tensors.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    train(settings(data, tmp_path / "run", resume=True), model=plain())
    assert re.search(r"warning: checkpoint 00000007: .* going on from the one before", capfd.readouterr().err)


# ----------------------------------------------------------------------------------------------- what goes wrong


class Explodes(Plain):
    """Its output is not a number from a training step on."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * (float("nan") if self.training and self.steps + 1 >= self.step else 1.0))


def test_a_loss_that_is_not_finite_names_step_rate_and_last_good_checkpoint(data: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    with pytest.raises(TrainingError) as caught:
        run(data, tmp_path / "run", Explodes(13), checkpoint_every=1)
    message = str(caught.value)
    assert "the loss is nan at step 12 (epoch 3, step 3 of 5), learning rate " in message
    assert str(tmp_path / "run" / "state" / "00000010") in message
    assert "Try a smaller --lr" in message
    assert epochs_written(tmp_path / "run") == [1, 2]


def test_a_learning_rate_far_too_high_is_named(data: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"learning rate [\d.]+e\+\d+; last good checkpoint: none"):
        run(data, tmp_path / "run", plain(), lr=1e12, warmup=0.0)


def test_weights_ruined_by_the_very_last_step_are_no_result(data: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="the weights are not finite after step 0"):
        run(data, tmp_path / "run", plain(), epochs=1, batch_size=150, lr=3e38, warmup=0.0)
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_ruined_weights_are_never_a_good_checkpoint(data: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"not finite.*last good checkpoint: none"):
        run(data, tmp_path / "run", plain(), epochs=2, batch_size=150, lr=3e38, warmup=0.0, checkpoint_every=1)


def test_a_failed_run_exits_1_without_a_traceback(data: Path, tmp_path: Path) -> None:
    process = command("-m", "transnet", "train", data, "--out", tmp_path / "run", "--lr", "1e30", "--device", "cpu")
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 1
    assert "Traceback" not in errors
    assert re.search(r"transnet: the (loss is|weights are not)", errors)


# --------------------------------------------------------------------------------------------- natural transforms


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        (("r0", "m0"), ["m0 and r0"]), (("r1", "m3"), ["m3 and r1"]), (("r2", "m2"), ["m2 and r2"]),
        (("r3", "m1"), ["m1 and r3"]), (("r0", "r1", "r2", "r3"), []), (("r0", "r0"), []), (("r0", "m1", "m2"), []),
        (("r0", "m0", "r1", "m3"), ["m0 and r0", "m3 and r1"]),
    ],
)  # fmt: skip
def test_transforms_that_flipped_images_make_one_task_are_found(names: tuple[str, ...], pairs: list[str]) -> None:
    assert natural_pairs(names) == pairs


@pytest.mark.parametrize("flip", [True, False])
def test_a_natural_pair_is_warned_of_only_where_images_are_flipped(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], flip: bool
) -> None:
    train(settings(data, tmp_path / "run", transforms="r0,m0", flip=flip, epochs=1))
    assert ("warning: images are flipped in training, so m0 and r0" in capfd.readouterr().err) == flip


def test_a_plan_that_was_drawn_ahead_is_for_its_own_epoch_alone(data: Path, tmp_path: Path) -> None:
    trainer = Trainer(settings(data, tmp_path / "run"), World(), torch.device("cpu"), None, data=None, quiet=True)
    trainer.prepare()
    first, second, third = (trainer._plan(epoch) for epoch in range(3))
    trainer._ahead = 1, second
    assert trainer._plan(1) is second
    assert torch.equal(trainer._plan(0).order, first.order)
    assert torch.equal(trainer._plan(2).order, third.order)
    assert not torch.equal(second.order, third.order)


class OnlyTrains(Plain):
    """Its outputs are numbers in training only."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * (float("nan") if self.steps and not self.training else 1.0))


def test_outputs_that_are_no_numbers_are_no_result(data: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="the loss on the test set is nan, though it was finite in training"):
        run(data, tmp_path / "run", OnlyTrains())
    assert not (tmp_path / "run" / "result.json").exists()
    written = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "NaN" not in written  # which is no JSON
    assert [entry["test"]["full"]["loss"] for entry in Run(tmp_path / "run").read_metrics()] == [None] * 3


def test_two_processes_do_not_train_one_run(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped_run(data, tmp_path / "run", step=7)
    monkeypatch.setattr("transnet.train.run._PATIENCE", 2)
    other = os.open(tmp_path / "run", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(ConfigError, match=r"another process trains .*; wait for its end, or give another folder"):
        run(data, tmp_path / "run", plain(), resume=True)
    os.close(other)
    run(data, tmp_path / "run", plain(), resume=True)
    assert epochs_written(tmp_path / "run") == [1, 2, 3]


def waiting(out: Path, *words: Any) -> "tuple[subprocess.Popen[str], int]":
    """A process that waits for the folder, which this one holds by the descriptor that is also returned."""
    held = os.open(out, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    child = command("-m", "transnet", "train", *words, "--out", out, "--device", "cpu", "--no-tensorboard")
    assert child.stderr is not None
    assert "another process trains" in child.stderr.readline()
    return child, held


def test_a_process_that_waited_for_another_finds_the_run_finished(data: Path, tmp_path: Path) -> None:
    words = (data, "--epochs", 2, "--model", "resnet8-small", "--transforms", "r0")
    done = command("-m", "transnet", "train", *words, "--out", tmp_path / "run", "--device", "cpu", "--no-tensorboard")
    assert done.wait() == 0
    before = Run(tmp_path / "run").read_metrics()
    (tmp_path / "run" / "result.json").rename(tmp_path / "result.json")
    child, held = waiting(tmp_path / "run", *words, "--resume")
    (tmp_path / "result.json").rename(tmp_path / "run" / "result.json")
    os.close(held)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 0
    assert "is finished; nothing to do" in said
    assert Run(tmp_path / "run").read_metrics() == before


def test_a_beginner_that_waited_for_another_finds_the_folder_taken(data: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    child, held = waiting(tmp_path / "run", data, "--epochs", 1, "--model", "resnet8-small")
    (tmp_path / "run" / "config.json").write_text("another's")
    os.close(held)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 2
    assert "exists; add --resume to go on with it" in said
    assert (tmp_path / "run" / "config.json").read_text() == "another's"


def test_a_streamed_run_that_failed_can_be_resumed_while_its_error_is_kept(data: Path, tmp_path: Path) -> None:
    with pytest.raises(Stopped) as kept:
        run(data, tmp_path / "run", plain(stop_at=7), storage="stream", workers=2)
    run(data, tmp_path / "run", plain(), storage="stream", workers=2, resume=True)
    assert kept.value
    assert not multiprocessing.active_children()


def test_stray_commas_among_the_transforms_do_no_harm(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "run", epochs=1, transforms="r0,, r1,")
    assert load(tmp_path / "run").transforms == ("r0", "r1")


def test_what_could_not_be_loaded_is_not_trained(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="image_size is 1040; a whole number from 1 to 1024 is needed"):
        run(data, tmp_path / "run", image_size=1040)
    with pytest.raises(ConfigError, match="a list of up to 64 names is needed"):
        run(data, tmp_path / "run", transforms=",".join(["r0"] * 65))
    assert not (tmp_path / "run").exists()


def normalised() -> nn.Module:
    """With batch norm on maps of one pixel, which a single image cannot train."""
    layers = (nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 3))
    return nn.Sequential(*layers)


def test_a_last_batch_that_batch_norm_cannot_train_on_is_said_first(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--batch-size: 149 leaves 1 to the last step; change it: Expected more"):
        run(data, tmp_path / "run", normalised(), batch_size=149, transforms="r0")
    assert not (tmp_path / "run").exists()
    run(data, tmp_path / "run", normalised(), batch_size=149, transforms="r0,r1")  # two views of the image
    run(data, tmp_path / "other", normalised(), batch_size=148, transforms="r0")


def test_trying_the_last_batch_leaves_the_statistics_alone(data: Path, tmp_path: Path) -> None:
    config = settings(data, tmp_path / "run", batch_size=149, transforms="r0,r1")
    trainer = Trainer(config, World(), torch.device("cpu"), normalised(), data=None, quiet=True)
    trainer.prepare()
    trainer.run.release()
    assert trainer.net.backbone[2].running_mean.count_nonzero() == 0
    assert trainer.net.backbone[2].num_batches_tracked == 0


@pytest.mark.parametrize("workers_too", [False, True], ids=["group", "every process"])
def test_a_signal_to_all_processes_of_a_streamed_run_saves_it(data: Path, tmp_path: Path, workers_too: bool) -> None:
    words = ("train", data, "--out", tmp_path / "run", "--epochs", 400, "--model", "resnet8-small", "--batch-size", 16)
    more = ("--storage", "stream", "--workers", 2, "--device", "cpu", "--no-tensorboard", "--transforms", "r0")
    child = command("-m", "transnet", *words, *more, start_new_session=True)
    while len(Run(tmp_path / "run").read_metrics()) < 2:
        assert child.poll() is None
        time.sleep(0.02)
    children = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    if workers_too:
        for worker in children:
            os.kill(int(worker), signal.SIGTERM)
    os.killpg(child.pid, signal.SIGTERM)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 1
    assert "everything is saved. Go on with" in said
    assert "Traceback" not in said
