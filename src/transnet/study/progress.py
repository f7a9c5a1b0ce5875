"""Progress display of a study: all runs at a glance in a terminal, otherwise a line for each run that ends."""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from transnet.console import duration, say
from transnet.runs.folder import Run
from transnet.study.estimate import epochs_done
from transnet.study.plan import PlannedRun

if TYPE_CHECKING:
    from rich.console import Group

DRAW_EVERY = 0.5  # seconds


class StudyProgress:
    """Runs that are done, running and waiting, and the time left, read from their folders. A context manager.

    Args:
        runs: all of the study.
        done: names of those that were finished before.
        shown: False to print nothing.
    """

    def __init__(self, runs: Sequence[PlannedRun], done: set[str], *, shown: bool = True) -> None:
        from rich.console import Console
        from rich.live import Live

        self.runs, self.done = {run.name: run for run in runs}, set(done)
        self.failed: dict[str, str] = {}
        self.started: dict[str, float] = {}
        self.shown = shown
        self._before = self._work()
        self._first: tuple[float, float] | None = None  # when progress was first seen, and how much work was done then
        self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
        self._tty = shown and sys.stderr.isatty()
        self._drawn = 0.0

    def __enter__(self) -> "StudyProgress":
        if self._tty:
            self._live.start()
        if self.done:
            self.say(f"{len(self.done)} of {len(self.runs)} runs were finished before")
        return self

    def __exit__(self, *_: object) -> None:
        if self._tty:
            self._live.stop()

    def say(self, message: str) -> None:
        """Print a line above the display."""
        if self._tty:
            self._live.console.print(message, highlight=False)
        else:
            say(message, shown=self.shown)

    def ended(self, name: str, error: str = "") -> None:
        """Report a run that has finished, or failed with that error."""
        begun = self.started.pop(name, None)
        time_taken = f" in {duration(time.time() - begun)}" if begun else ""
        if error:
            self.failed[name] = error
            self.say(f"{name} failed{time_taken}: {error}")
        else:
            self.done.add(name)
            self.say(f"{name} finished{time_taken} ({len(self.done)} of {len(self.runs)}, {self.left()})")

    def refresh(self) -> None:
        """Draw again, at most a few times per second."""
        if time.monotonic() - self._drawn > DRAW_EVERY:
            self._drawn = time.monotonic()
            if self._tty:
                self._live.update(self._draw(), refresh=True)
            elif self._first is None:
                self._note(self._work())

    def left(self) -> str:
        """The time left at the pace since the first progress, in words. Starting up does not count."""
        work = self._work()
        self._note(work)
        since, before = self._first or (time.time(), work)
        total = sum(_size(run) for name, run in self.runs.items() if name not in self.failed)
        pace = (work - before) / max(time.time() - since, 1e-9)
        return f"about {duration((total - work) / pace)} left" if pace > 0 else "time left unknown"

    def _draw(self) -> "Group":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        # On a cluster a run may have been submitted and still wait for a free node.
        running = [name for name, begun in self.started.items() if self._written_since(name, begun)]
        waiting = len(self.runs) - len(self.done) - len(self.failed) - len(running)
        failed = f"   [red]failed {len(self.failed)}[/red]" if self.failed else ""
        head = Text.from_markup(
            f"[bold]done {len(self.done)}[/bold] of {len(self.runs)}   running {len(running)}   waiting {waiting}"
            f"{failed}   {self.left()}"
        )
        table = Table.grid(padding=(0, 2))
        for name in running:
            run = self.runs[name]
            epochs = epochs_done(run)
            bar = ProgressBar(total=run.config.epochs, completed=epochs, width=24)
            table.add_row(name, bar, f"epoch {epochs} of {run.config.epochs}")
        return Group(head, table)

    def _note(self, work: float) -> None:
        if self._first is None and work > self._before:
            self._first = time.time(), work

    def _work(self) -> float:
        return sum(
            _size(run) if name in self.done else epochs_done(run) * run.heads
            for name, run in self.runs.items()
            if name not in self.failed
        )

    def _written_since(self, name: str, begun: float) -> bool:
        run = Run(self.runs[name].path)
        files = (run.config, run.metrics_file)
        return any(file.exists() and file.stat().st_mtime >= begun - 1 for file in files)


def _size(run: PlannedRun) -> int:
    return run.config.epochs * run.heads
