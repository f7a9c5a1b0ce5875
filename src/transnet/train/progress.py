"""Progress of one run: a live line in a terminal, otherwise an occasional plain line."""

import math
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress import ProgressColumn, Task
from rich.table import Column
from rich.text import Text

from transnet.console import progress_bar, say
from transnet.runs.records import EpochEntry

LOG_EVERY = 30  # minimum seconds between two lines of a log


class RunProgress:
    """Progress display for one run, as a context manager.

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

    def __exit__(self, *_: Any) -> None:
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
