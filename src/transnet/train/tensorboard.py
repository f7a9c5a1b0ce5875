"""Curves for TensorBoard, if it is installed."""

from pathlib import Path
from typing import Any

from transnet.runs.records import EpochEntry


class Curves:
    """Write a run's epochs to ``tensorboard/`` in its folder; without the package this does nothing.

    Args:
        folder: the run's.
        enabled: False writes nothing.
        epochs: epochs done before; their curves stay.
    """

    def __init__(self, folder: Path, enabled: bool, *, epochs: int = 0) -> None:
        self._writer: Any = None
        if enabled:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                return
            # A resumed run repeats the epochs after its checkpoint.
            self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=epochs + 1 if epochs else None)

    def add(self, entry: EpochEntry) -> None:
        """Add an epoch."""
        if self._writer is None:
            return
        values: dict[str, float | None] = {"lr": entry.lr, "images_per_second": entry.images_per_second}
        for i, (loss, accuracy) in enumerate(zip(entry.loss, entry.accuracy, strict=True)):
            values |= {f"train/loss/head{i}": loss, f"train/accuracy/head{i}": accuracy}
        values |= {f"train/terms/{name}": value for name, value in entry.terms.items()}
        for split, found in (("val", entry.val), ("test", entry.test)):
            for kind, score in (("pruned", found.pruned), ("full", found.full)) if found else ():
                if score:
                    values |= {f"{split}/accuracy/{kind}": score.accuracy, f"{split}/loss/{kind}": score.loss}
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(name, value, entry.epoch)

    def close(self) -> None:
        """Flush."""
        if self._writer is not None:
            self._writer.close()
