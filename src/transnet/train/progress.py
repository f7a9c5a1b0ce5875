"""What a person sees of a run: a live line in a terminal, nothing in a log file but how it began and ended."""

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class RunProgress:
    """The live line of one run. Use it as a context manager; it does nothing where standard error is no terminal.

    Args:
        names: of the heads.
        epochs: in all.
        steps: an epoch.
        shown: False for the processes that do not speak.
    """

    def __init__(self, names: tuple[str, ...], epochs: int, steps: int, *, shown: bool) -> None:
        self.names, self.steps = names, steps
        self.bar = Progress(
            TextColumn("epoch"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not shown or not sys.stderr.isatty(),
            transient=True,
        )
        self.task = self.bar.add_task("", total=epochs, note="")
        self._last = 0.0

    def __enter__(self) -> "RunProgress":
        self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def step(self, epoch: int, step: int) -> None:
        """After a step; looks at the clock only."""
        now = time.monotonic()
        if not self.bar.disable and now - self._last > 0.2:
            self._last = now
            self.bar.update(self.task, completed=epoch + step / self.steps)

    def epoch(self, entry: dict[str, Any]) -> None:
        """After an epoch: its line of ``metrics.jsonl``."""
        heads = "  ".join(
            f"{name} {loss:.3f}/{accuracy:.1%}"
            for name, loss, accuracy in zip(self.names, entry["loss"], entry["accuracy"], strict=True)
        )
        test = f"  test {entry['test']['full']['accuracy']:.2%}" if entry.get("test") else ""
        note = f"{heads}{test}  {entry['images_per_second']:,.0f} images/s"
        self.bar.update(self.task, completed=entry["epoch"], note=note)


def say(message: str, *, shown: bool = True) -> None:
    """A line for the person at the terminal or the reader of the log."""
    if shown:
        print(message, file=sys.stderr, flush=True)
