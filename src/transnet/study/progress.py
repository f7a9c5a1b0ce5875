"""What a person sees of a study: all its runs at a glance in a terminal, a line for each that ends in a log file."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from transnet.study.plan import PlannedRun


class Overview:
    """Done, running, waiting and the time left, read from the runs' folders. Use it as a context manager.

    Args:
        runs: all of the study.
        done: names of those that were finished before.
        shown: False to say nothing.
    """

    def __init__(self, runs: Sequence[PlannedRun], done: set[str], *, shown: bool = True) -> None:
        self.runs, self.done = {run.name: run for run in runs}, set(done)
        self.failed: dict[str, str] = {}
        self.started: dict[str, float] = {}
        self.shown = shown
        self._before = self._work()
        self._first: tuple[float, float] | None = None  # when work was first seen to be done, and how much
        self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
        self._tty = shown and sys.stderr.isatty()
        self._drawn = 0.0

    def __enter__(self) -> "Overview":
        if self._tty:
            self._live.start()
        if self.shown and self.done:
            self.say(f"{len(self.done)} of {len(self.runs)} runs were finished before")
        return self

    def __exit__(self, *_: Any) -> None:
        if self._tty:
            self._live.stop()

    def say(self, message: str) -> None:
        """A line that stays."""
        if self._tty:
            self._live.console.print(message, highlight=False)
        elif self.shown:
            print(message, file=sys.stderr, flush=True)

    def ended(self, name: str, error: str | None) -> None:
        """A run has finished, or failed with that error."""
        begun = self.started.pop(name, None)
        took = f" in {_duration(time.time() - begun)}" if begun else ""
        if error is None:
            self.done.add(name)
            self.say(f"{name} finished{took} ({len(self.done)} of {len(self.runs)}, {self.left()})")
        else:
            self.failed[name] = error
            self.say(f"{name} failed{took}: {error}")

    def refresh(self) -> None:
        """Draw it anew, a few times a second at most."""
        if time.monotonic() - self._drawn > 0.5:
            self._drawn = time.monotonic()
            if self._tty:
                self._live.update(self._draw(), refresh=True)
            elif self._first is None:
                self._note(self._work())

    def running(self) -> list[str]:
        """The runs that write: on a cluster a run may be handed over and still wait for a place."""
        return [name for name, begun in self.started.items() if self._written_since(name, begun)]

    def left(self) -> str:
        """The time left at the pace since work began to be done, in words; how long the first start took is no pace."""
        work = self._work()
        self._note(work)
        since, before = self._first or (time.time(), work)
        total = sum(_size(run) for name, run in self.runs.items() if name not in self.failed)
        pace = (work - before) / max(time.time() - since, 1e-9)
        return f"about {_duration((total - work) / pace)} left" if pace > 0 else "time left unknown"

    def _draw(self) -> Group:
        running = self.running()
        waiting = len(self.runs) - len(self.done) - len(self.failed) - len(running)
        failed = f"   [red]failed {len(self.failed)}[/red]" if self.failed else ""
        head = Text.from_markup(
            f"[bold]done {len(self.done)}[/bold] of {len(self.runs)}   running {len(running)}   waiting {waiting}"
            f"{failed}   {self.left()}"
        )
        table = Table.grid(padding=(0, 2))
        for name in running:
            run = self.runs[name]
            epochs = _epochs(run)
            bar = ProgressBar(total=run.config.epochs, completed=epochs, width=24)
            table.add_row(name, bar, f"epoch {epochs} of {run.config.epochs}")
        return Group(head, table)

    def _note(self, work: float) -> None:
        if self._first is None and work > self._before:
            self._first = time.time(), work

    def _work(self) -> float:
        return sum(
            _size(run) if name in self.done else _epochs(run) * run.heads
            for name, run in self.runs.items()
            if name not in self.failed
        )

    def _written_since(self, name: str, begun: float) -> bool:
        folder = Path(self.runs[name].config.out)
        files = (folder / "config.json", folder / "metrics.jsonl")
        return any(file.exists() and file.stat().st_mtime >= begun - 1 for file in files)


def _epochs(run: PlannedRun) -> int:
    try:
        return (Path(run.config.out) / "metrics.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0


def _size(run: PlannedRun) -> int:
    return run.config.epochs * run.heads


def _duration(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minute:02d} min"
    return f"{minute} min {second:02d} s" if minute else f"{second} s"
