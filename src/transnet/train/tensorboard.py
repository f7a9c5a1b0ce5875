"""Curves for TensorBoard, where it is installed."""

from pathlib import Path
from typing import Any

from transnet.runs.records import EpochEntry


class Curves:
    """Writes a run's lines to ``tensorboard/`` in its folder; does nothing without the package.

    Args:
        folder: the run's.
        wanted: False writes nothing.
        epochs: done before, whose curves stay.
    """

    def __init__(self, folder: Path, wanted: bool, *, epochs: int = 0) -> None:
        self._writer: Any = None
        if wanted:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                return
            # A resumed run does the epochs after its checkpoint again.
            self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=epochs + 1 if epochs else None)

    def add(self, entry: EpochEntry) -> None:
        """A line of ``metrics.jsonl``."""
        if self._writer is None:
            return
        epoch = entry.epoch
        self._writer.add_scalar("lr", entry.lr, epoch)
        self._writer.add_scalar("images_per_second", entry.images_per_second, epoch)
        for i, (loss, accuracy) in enumerate(zip(entry.loss, entry.accuracy, strict=True)):
            self._writer.add_scalar(f"train/loss/head{i}", loss, epoch)
            self._writer.add_scalar(f"train/accuracy/head{i}", accuracy, epoch)
        for split, scores in (("val", entry.val), ("test", entry.test)):
            for kind, score in (("pruned", scores.pruned), ("full", scores.full)) if scores else ():
                if score:
                    self._writer.add_scalar(f"{split}/accuracy/{kind}", score.accuracy, epoch)
                    self._writer.add_scalar(f"{split}/loss/{kind}", score.loss, epoch)

    def close(self) -> None:
        """Flush."""
        if self._writer is not None:
            self._writer.close()
