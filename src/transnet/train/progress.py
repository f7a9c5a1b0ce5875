"""Progress of one run: a display in a terminal or a log, curves for TensorBoard, and how long the run's parts take."""

import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.progress import TextColumn
from rich.table import Column

from transnet.console import progress_bar, say
from transnet.runs.records import EpochEntry


class RunProgress:
    """Progress display for one run: a live line in a terminal while ``bar`` is open, otherwise an occasional line."""

    def __init__(self, epochs: int, steps: int, *, done: float = 0.0, shown: bool) -> None:
        self.epochs, self.steps = epochs, steps
        self.done = done  # epochs of earlier processes, the last one perhaps in part
        rest = TextColumn("{task.fields[summary]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
        self.bar = progress_bar(rest, shown=shown)
        self._logs = shown and not sys.stderr.isatty()
        self._task = self.bar.add_task("epoch", total=epochs, completed=int(done), summary="")
        self._started, self._last = time.monotonic(), -math.inf

    def step(self, epoch: int, step: int) -> None:
        """Update the display after a step; this does not wait for the device."""
        now = time.monotonic()
        if not self.bar.disable and now - self._last > 0.2:
            self._last = now
            self.bar.update(self._task, completed=epoch + step / self.steps)

    def epoch(self, entry: EpochEntry) -> None:
        """Update the display after an epoch."""
        losses = [math.nan if loss is None else loss for loss in entry.loss]
        loss, rate = f"loss {loss_text(sum(losses) / len(losses))}", f"{entry.images_per_second:,.0f} images/s"
        tested = _accuracy(entry)
        self.bar.update(self._task, completed=entry.epoch, summary=", ".join([*tested, loss, rate]))
        now = time.monotonic()
        if self._logs and (now - self._last >= 30 or entry.epoch == self.epochs):
            self._last = now
            left = (now - self._started) / (entry.epoch - self.done) * (self.epochs - entry.epoch)
            line = ", ".join([loss, *tested, rate, f"{timedelta(seconds=round(left))} left"])
            say(f"epoch {entry.epoch} of {self.epochs}: {line}")


def _accuracy(entry: EpochEntry) -> list[str]:
    """The epoch's accuracy, if it was evaluated. Somebody who watches may choose by it, so validation comes first."""
    split, found = ("validation", entry.val) if entry.val else ("test", entry.test)
    if not found:
        return []
    pruned = f"{found.pruned.accuracy:.2%} pruned, " if found.pruned else ""
    full = f"{found.full.accuracy:.2%}"
    return [f"{split} accuracy {full if len(found.heads) == 1 else f'{pruned}{full} all heads'}"]


def loss_text(loss: float | None) -> str:
    """A loss as text: only the order of magnitude if it has diverged."""
    if loss is None:
        return "nan"
    return f"{loss:.4f}" if loss < 1e4 else f"{loss:.0e}"


class Curves:
    """Write a run's epochs to ``tensorboard/`` in its folder, if ``enabled`` and if TensorBoard is installed."""

    def __init__(self, folder: Path, enabled: bool, *, epochs: int) -> None:
        self._writer: Any = None
        if enabled:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                return
            purge = epochs + 1 if epochs else None  # a resumed run repeats the epochs after these
            self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)

    def add(self, entry: EpochEntry) -> None:
        """Add an epoch."""
        if self._writer is None:
            return
        values: dict[str, float | None] = {"lr": entry.lr, "images_per_second": entry.images_per_second}
        values |= {f"train/loss/head{i}": loss for i, loss in enumerate(entry.loss)}
        values |= {f"train/accuracy/head{i}": accuracy for i, accuracy in enumerate(entry.accuracy)}
        values |= {f"train/terms/{name}": value for name, value in entry.terms.items()}
        for split, found in (("val", entry.val), ("test", entry.test)):
            for kind in ("pruned", "full"):
                if score := getattr(found, kind, None):
                    values |= {f"{split}/accuracy/{kind}": score.accuracy, f"{split}/loss/{kind}": score.loss}
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(name, value, entry.epoch)

    def close(self) -> None:
        """Write what TensorBoard still buffers."""
        if self._writer is not None:
            self._writer.close()


class Stopwatch:
    """Measure the parts of a run and its total, across all processes that continued it."""

    def __init__(self) -> None:
        # Seconds. The rest of the total is spent on checkpoints and the like.
        self.parts = dict.fromkeys(("prepare", "compile", "train", "evaluate"), 0.0)
        self.started, self._earlier = time.perf_counter(), 0.0

    @property
    def total(self) -> float:
        """Seconds spent in this process, plus those of earlier processes up to their last checkpoint."""
        return self._earlier + time.perf_counter() - self.started

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Add the time that the block takes to a part."""
        start = time.perf_counter()
        yield
        self.parts[part] += time.perf_counter() - start

    def resume(self, seconds: Mapping[str, float]) -> None:
        """Add the parts and the ``total`` of earlier processes."""
        self._earlier = seconds["total"]
        for part in self.parts:
            self.parts[part] += seconds[part]
