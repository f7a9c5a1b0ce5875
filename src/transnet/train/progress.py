"""What a person sees of a run: a live line in a terminal, in a log a line now and then, its scores as tables."""

import math
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

LOG_EVERY = 30  # seconds, at least, between the lines of a log


class RunProgress:
    """What one run says while it trains: a live line in a terminal, elsewhere a plain line now and then.

    Use it as a context manager.

    Args:
        names: of the heads.
        epochs: in all.
        steps: an epoch.
        done: epochs that an earlier process did, the last one perhaps in part.
        shown: False for the processes that do not speak.
    """

    def __init__(self, names: tuple[str, ...], epochs: int, steps: int, *, done: float = 0.0, shown: bool) -> None:
        self.names, self.epochs, self.steps, self.done = names, epochs, steps, done
        live = sys.stderr.isatty()
        self.logs = shown and not live
        self.bar = Progress(
            TextColumn("epoch"),
            MofNCompleteColumn(),
            BarColumn(bar_width=16),
            TimeRemainingColumn(),
            TextColumn("left"),
            _NotesColumn(),
            console=Console(stderr=True),
            disable=not shown or not live,
            transient=True,
            expand=True,
        )
        self.task = self.bar.add_task("", total=epochs, completed=int(done), notes=[""])
        self.started = time.monotonic()
        self._last = -math.inf

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
        self.bar.update(self.task, completed=entry["epoch"], notes=notes(self.names, entry))
        now = time.monotonic()
        if self.logs and (now - self._last >= LOG_EVERY or entry["epoch"] == self.epochs):
            self._last = now
            left = (now - self.started) / (entry["epoch"] - self.done) * (self.epochs - entry["epoch"])
            say(f"epoch {entry['epoch']} of {self.epochs}: {_logged(entry)}, {timedelta(seconds=round(left))} left")


class _NotesColumn(ProgressColumn):
    """Takes what the other columns leave."""

    def __init__(self) -> None:
        super().__init__(Column(ratio=1, no_wrap=True))

    def render(self, task: Task) -> "_Longest":
        return _Longest(task.fields["notes"])


class _Longest:
    """The first of several texts that fits; the last one is cut where none does."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        fits = (text for text in self.texts if len(text) <= options.max_width)
        yield Text(next(fits, self.texts[-1]), no_wrap=True, overflow="ellipsis")


def notes(names: tuple[str, ...], entry: dict[str, Any]) -> list[str]:
    """What the live line says of an epoch, from all there is to the first head alone."""
    heads = [
        f"{name} {loss_text(loss, 3)}/{accuracy:.1%}"
        for name, loss, accuracy in zip(names, entry["loss"], entry["accuracy"], strict=True)
    ]
    test = [f"test {figure}" for figure in _test(entry)]
    whole = "  ".join([*heads, *test[:1]])
    shorter = ["  ".join([heads[0], figure]) for figure in test]
    return [f"{whole}  {entry['images_per_second']:,.0f} images/s", whole, *shorter, heads[0]]


def _test(entry: dict[str, Any]) -> list[str]:
    """The accuracy on the test set, of the pruned classifier and all heads, then of all heads; none if not measured."""
    found = entry.get("test")
    if not found:
        return []
    full = f"{found['full']['accuracy']:.2%}"
    if len(found["heads"]) == 1:
        return [full]
    pruned = f"{found['pruned']['accuracy']:.2%} pruned, " if found["pruned"] else ""
    return [f"{pruned}{full} all heads", f"{full} all heads"]


def _logged(entry: dict[str, Any]) -> str:
    loss = sum(entry["loss"]) / len(entry["loss"])
    test = [f"test accuracy {figure}" for figure in _test(entry)[:1]]
    return ", ".join([f"loss {loss_text(loss)}", *test, f"{entry['images_per_second']:,.0f} images/s"])


def say(message: str, *, shown: bool = True) -> None:
    """A line for the person at the terminal or the reader of the log."""
    if shown:
        print(message, file=sys.stderr, flush=True)


def counted(n: int, what: str) -> str:
    """A number of things: ``1 epoch``, ``20 epochs``."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def loss_text(loss: float, digits: int = 4) -> str:
    """A loss as it is printed; of one that has run away the size only."""
    return f"{loss:.{digits}f}" if loss < 1e4 else f"{loss:.0e}"


def print_scores(views: dict[str, dict[str, Any] | None]) -> None:
    """A table a view of the pruned and full classifier and every head, and what their disagreement says.

    Args:
        views: title → scores as in ``result.json``, such as plain and with flip; None is left out.
    """
    shown = {title: view for title, view in views.items() if view}
    console = Console()
    for title, view in shown.items():
        console.print(_table(view, title if len(shown) > 1 else None))
        for name in ("pruned", "full"):
            if view[name] and "disagreement" in view[name]:
                console.print(_disagreement(_members(name, view), view[name]), highlight=False)


def _table(view: dict[str, Any], title: str | None) -> Table:
    calibrated = "calibration_error" in view["full"]
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for column in ("passes", "accuracy %", "loss", *(["calibration error %"] if calibrated else [])):
        table.add_column(column, justify="right")
    rows = {"pruned": view["pruned"], "full": view["full"]}
    rows |= {f"head {i}: {head['name']}": head for i, head in enumerate(view["heads"])}
    for name, entry in rows.items():
        if entry:
            cells = [str(entry["passes"]), f"{100 * entry['accuracy']:.2f}", loss_text(entry["loss"])]
            cells += [f"{100 * entry['calibration_error']:.2f}"] if calibrated else []
            table.add_row(name, *cells)
    return table


def _members(name: str, view: dict[str, Any]) -> str:
    """Whose mean a row is: of a run its heads', of an ensemble its runs'."""
    if view["heads"]:
        return "heads"
    return "runs' pruned classifiers" if name == "pruned" else "runs' full models"


def _disagreement(members: str, entry: dict[str, Any]) -> str:
    auroc = entry["error_auroc"]
    finds = (
        f" How far they differ tells wrong answers from right ones with an AUROC of {auroc:.3f}, where 0.5 is chance "
        "and 1 never fails."
        if auroc is not None
        else ""
    )
    return (
        f"The {members} do not all choose the same class for {100 * entry['split_votes']:.1f} % of the images; their "
        f"probabilities differ by {entry['disagreement']:.4f} nats on average, where 0 is agreement.{finds}"
    )
