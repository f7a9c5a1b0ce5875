"""Progress of one run: a display in a terminal or a log, curves for TensorBoard, and how long the run's parts take."""

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress import ProgressColumn, Task
from rich.table import Column
from rich.text import Text

from transnet.console import progress_bar, say
from transnet.runs.records import EpochEntry

LOG_EVERY = 30  # minimum seconds between two lines of a log


class RunProgress:
    """Progress display for one run, as a context manager: a live line in a terminal, otherwise an occasional line.

    Args:
        names: of the heads.
        epochs: in total.
        steps: per epoch.
        done: epochs done by earlier processes, the last one perhaps in part.
        shown: False for processes that print nothing.
    """

    def __init__(self, names: tuple[str, ...], epochs: int, steps: int, *, done: float = 0.0, shown: bool) -> None:
        self.names, self.epochs, self.steps, self.done = names, epochs, steps, done
        self.bar = progress_bar(_SummaryColumn(), shown=shown)
        self.logs = shown and not sys.stderr.isatty()
        self.task = self.bar.add_task("epoch", total=epochs, completed=int(done), summaries=[""])
        self.started = time.monotonic()
        self._last = -math.inf

    def __enter__(self) -> "RunProgress":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def step(self, epoch: int, step: int) -> None:
        """Update the display after a step; this does not wait for the device."""
        now = time.monotonic()
        if not self.bar.disable and now - self._last > 0.2:
            self._last = now
            self.bar.update(self.task, completed=epoch + step / self.steps)

    def epoch(self, entry: EpochEntry) -> None:
        """Update the display after an epoch."""
        self.bar.update(self.task, completed=entry.epoch, summaries=summaries(self.names, entry))
        now = time.monotonic()
        if self.logs and (now - self._last >= LOG_EVERY or entry.epoch == self.epochs):
            self._last = now
            left = (now - self.started) / (entry.epoch - self.done) * (self.epochs - entry.epoch)
            say(f"epoch {entry.epoch} of {self.epochs}: {_log_line(entry)}, {timedelta(seconds=round(left))} left")


class _SummaryColumn(ProgressColumn):
    """Fills the width that the other columns leave."""

    def __init__(self) -> None:
        super().__init__(Column(ratio=1, no_wrap=True))

    def render(self, task: Task) -> "_FirstThatFits":
        return _FirstThatFits(task.fields["summaries"])


class _FirstThatFits:
    """Show the first text that fits, or truncate the last one."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        fitting = (text for text in self.texts if len(text) <= options.max_width)
        yield Text(next(fitting, self.texts[-1]), no_wrap=True, overflow="ellipsis")


def summaries(names: tuple[str, ...], entry: EpochEntry) -> list[str]:
    """An epoch in a line, from everything down to the first head alone, for terminals of any width."""
    heads = [
        f"{name} {loss_text(loss, 3)}/{accuracy or 0:.1%}"
        for name, loss, accuracy in zip(names, entry.loss, entry.accuracy, strict=True)
    ]
    tested = [f"{split} {accuracy}" for split, accuracy in _accuracies(entry)]
    whole = "  ".join([*heads, *tested[:1]])
    shorter = ["  ".join([heads[0], accuracy]) for accuracy in tested]
    return [f"{whole}  {entry.images_per_second:,.0f} images/s", whole, *shorter, heads[0]]


def _accuracies(entry: EpochEntry) -> list[tuple[str, str]]:
    """The split, with the accuracy of the pruned classifier and all heads, then of all heads alone.

    The validation split has precedence, because somebody who watches may choose by what is shown.
    """
    split, found = ("validation", entry.val) if entry.val else ("test", entry.test)
    if not found:
        return []
    full = f"{found.full.accuracy:.2%}"
    if len(found.heads) == 1:
        return [(split, full)]
    pruned = f"{found.pruned.accuracy:.2%} pruned, " if found.pruned else ""
    return [(split, f"{pruned}{full} all heads"), (split, f"{full} all heads")]


def _log_line(entry: EpochEntry) -> str:
    losses = [math.nan if loss is None else loss for loss in entry.loss]
    tested = [f"{split} accuracy {accuracy}" for split, accuracy in _accuracies(entry)[:1]]
    loss = loss_text(sum(losses) / len(losses))
    return ", ".join([f"loss {loss}", *tested, f"{entry.images_per_second:,.0f} images/s"])


def loss_text(loss: float | None, digits: int = 4) -> str:
    """A loss as text: only the order of magnitude if it has diverged."""
    if loss is None:
        return "nan"
    return f"{loss:.{digits}f}" if loss < 1e4 else f"{loss:.0e}"


class Curves:
    """Write a run's epochs to ``tensorboard/`` in its folder, if ``enabled`` and if TensorBoard is installed.

    Those after the first ``epochs`` are written again, because a resumed run repeats them.
    """

    def __init__(self, folder: Path, enabled: bool, *, epochs: int) -> None:
        self._writer: Any = None
        if enabled:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                return
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


class Stopwatch:
    """Measure the parts of a run and its total, across all processes that continued it.

    Attributes:
        parts: seconds in ``prepare``, ``compile``, ``train`` and ``evaluate``. The rest of the total is spent on
            checkpoints and the like.
    """

    def __init__(self) -> None:
        self.parts = dict.fromkeys(("prepare", "compile", "train", "evaluate"), 0.0)
        self._earlier = 0.0
        self._started = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds spent in this process."""
        return time.perf_counter() - self._started

    @property
    def total(self) -> float:
        """Seconds spent in this process, plus those of earlier processes up to their last checkpoint."""
        return self._earlier + self.elapsed

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Add the time that the block takes to a part."""
        start = time.perf_counter()
        yield
        self.parts[part] += time.perf_counter() - start

    def state_dict(self) -> dict[str, float]:
        """Seconds so far, for a checkpoint."""
        return {**self.parts, "total": self.total}

    def load_state_dict(self, seconds: dict[str, float]) -> None:
        """Add the seconds of earlier processes."""
        self._earlier = seconds["total"]
        for part in self.parts:
            self.parts[part] += seconds[part]
