"""Progress display of a study: all runs at a glance in a terminal, otherwise a line for each run that ends."""

import time

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from transnet.console import duration, say
from transnet.runs.folder import Run
from transnet.study.estimate import Estimate
from transnet.study.local import Ended


class StudyProgress:
    """Count the runs that are done, running and failed, and show them while used as a context manager."""

    def __init__(self, estimate: Estimate, at_once: int, *, shown: bool = True) -> None:
        self.runs = {run.name: run for run in estimate.runs}
        self.done = {run.name for run in estimate.runs if run.done}
        self.failed: dict[str, str] = {}
        self.running: dict[str, float] = {}  # the runs that were started and have not ended: when each was started
        self.shown = shown
        self._estimate, self._at_once = estimate, at_once
        console = Console(stderr=True)
        live = Live(console=console, get_renderable=self._draw, refresh_per_second=2, transient=True)
        self._live = live if shown and console.is_terminal else None

    def __enter__(self) -> "StudyProgress":
        if self._live:
            self._live.start()
        if self.done:
            say(f"{len(self.done)} of {len(self.runs)} runs were finished before", shown=self.shown)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def ended(self, end: Ended) -> None:
        """Count a run that is not being trained any more, and report it if it has finished or failed."""
        time_taken = duration(time.time() - self.running.pop(end.name))
        if end.error:
            self.failed[end.name] = end.error
            say(f"{end.name} failed in {time_taken}: {end.error}", shown=self.shown)
        elif not (end.busy or end.stopped):
            self.done.add(end.name)
            self._estimate.refresh()
            count = f"{len(self.done)} of {len(self.runs)}, {self._left()}"
            say(f"{end.name} finished in {time_taken} ({count})", shown=self.shown)

    def _left(self) -> str:
        runs = [run for name, run in self.runs.items() if name not in self.failed]
        seconds = self._estimate.left(runs, self._at_once)
        return "time left unknown" if seconds is None else f"about {duration(seconds)} left"

    def _draw(self) -> Group:
        """The display; another thread calls this."""
        # On a cluster a run may have been submitted and still wait for a free node.
        begun = [run for name in list(self.running) if Run((run := self.runs[name]).path).config.exists()]
        waiting = len(self.runs) - len(self.done) - len(self.failed) - len(begun)
        failed = f"   [red]failed {len(self.failed)}[/red]" if self.failed else ""
        counts = f"[bold]done {len(self.done)}[/bold] of {len(self.runs)}   running {len(begun)}   waiting {waiting}"
        table = Table.grid(padding=(0, 2))
        for run in begun:
            bar = ProgressBar(total=run.config.epochs, completed=run.epochs_done, width=24)
            table.add_row(run.name, bar, f"epoch {run.epochs_done} of {run.config.epochs}")
        return Group(f"{counts}{failed}   {self._left()}", table)
