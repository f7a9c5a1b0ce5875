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

from transnet.console import say
from transnet.runs.records import EpochEntry

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

    def epoch(self, entry: EpochEntry) -> None:
        """After an epoch: its line of ``metrics.jsonl``."""
        self.bar.update(self.task, completed=entry.epoch, notes=notes(self.names, entry))
        now = time.monotonic()
        if self.logs and (now - self._last >= LOG_EVERY or entry.epoch == self.epochs):
            self._last = now
            left = (now - self.started) / (entry.epoch - self.done) * (self.epochs - entry.epoch)
            say(f"epoch {entry.epoch} of {self.epochs}: {_logged(entry)}, {timedelta(seconds=round(left))} left")


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


def notes(names: tuple[str, ...], entry: EpochEntry) -> list[str]:
    """What the live line says of an epoch, from all there is to the first head alone."""
    heads = [
        f"{name} {loss_text(loss, 3)}/{accuracy:.1%}"
        for name, loss, accuracy in zip(names, entry.loss, entry.accuracy, strict=True)
    ]
    test = [f"{split} {figure}" for split, figure in _judged(entry)]
    whole = "  ".join([*heads, *test[:1]])
    shorter = ["  ".join([heads[0], figure]) for figure in test]
    return [f"{whole}  {entry.images_per_second:,.0f} images/s", whole, *shorter, heads[0]]


def _judged(entry: EpochEntry) -> list[tuple[str, str]]:
    """Accuracies of the pruned classifier and all heads, then of all heads, and on which split; none if not measured.

    On the validation split where there is one: a person who watches chooses by what is shown.
    """
    split, found = ("val", entry.val) if entry.val else ("test", entry.test)
    if not found:
        return []
    name = "validation" if split == "val" else split
    full = f"{found.full.accuracy:.2%}"
    if len(found.heads) == 1:
        return [(name, full)]
    pruned = f"{found.pruned.accuracy:.2%} pruned, " if found.pruned else ""
    return [(name, f"{pruned}{full} all heads"), (name, f"{full} all heads")]


def _logged(entry: EpochEntry) -> str:
    loss = sum(math.nan if loss is None else loss for loss in entry.loss) / len(entry.loss)
    test = [f"{split} accuracy {figure}" for split, figure in _judged(entry)[:1]]
    return ", ".join([f"loss {loss_text(loss)}", *test, f"{entry.images_per_second:,.0f} images/s"])


def loss_text(loss: float | None, digits: int = 4) -> str:
    """A loss as text; only the size of one that has diverged."""
    if loss is None:
        return "not finite"
    return f"{loss:.{digits}f}" if loss < 1e4 else f"{loss:.0e}"


def print_scores(plain: dict[str, Any], flip: dict[str, Any] | None, *, explained: bool = False) -> None:
    """Tables of the pruned and full classifier and every head, and what disagreement says.

    Args:
        plain: scores on the images alone, as in ``result.json``.
        flip: those on the images and their mirror images, where there are any.
        explained: whether what disagreement means was said before, of another run.
    """
    console = Console()
    views = {"the image alone": plain} | ({"the image and its mirror image": flip} if flip else {})
    for title, view in views.items():
        console.print(_table(view, title if flip else None))
    for title, view in views.items():
        for name in apart(view):
            if view[name] and "disagreement" in view[name]:
                who = f"On {title}, the {_members(name, view)}" if flip else f"The {_members(name, view)}"
                console.print(_disagreement(who, view[name], explained), highlight=False)
                explained = True


def print_anytime(found: dict[str, Any]) -> None:
    """A table of what anytime prediction costs and reaches, and where its thresholds come from.

    Args:
        found: ``anytime`` of `evaluate_runs`.
    """
    table = Table(title="anytime, the image alone", title_justify="left")
    for column in ("passes", "accuracy %", "confidence"):
        table.add_column(column, justify="right")
    points = found["points"]
    for passes, accuracy, confidence in zip(points["passes"], points["accuracy"], points["confidence"], strict=True):
        table.add_row(f"{passes:.2f}", f"{100 * accuracy:.2f}", f"{confidence:.4f}")
    console = Console()
    console.print(table)
    if found["chosen_on"] != found["judged_by"]:
        where = "Confidence was chosen on the validation split, for round numbers of passes there."
    else:
        where = (
            "Confidence was chosen on the images that judge it, which flatters; a run with --val-fraction, judged by "
            "its own test split, has others to choose on."
        )
    console.print(f"{where} transnet predict --confidence takes it.", highlight=False)


def _table(view: dict[str, Any], title: str | None) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    columns = [("accuracy\n%", "accuracy"), ("balanced\naccuracy %", "balanced_accuracy"), ("loss", "loss"),
               ("calibration\nerror %", "calibration_error")]  # fmt: skip
    # A result of an earlier version has no balanced accuracy, and only `transnet evaluate` measures the calibration.
    columns = [(column, key) for column, key in columns if key in view["full"]]
    for column in ("passes", *(column for column, _ in columns)):
        table.add_column(column, justify="right")
    for name, entry in _rows(view).items():
        cells = (loss_text(entry[key]) if key == "loss" else f"{100 * entry[key]:.2f}" for _, key in columns)
        table.add_row(name, str(entry["passes"]), *cells)
    return table


def _rows(view: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each classifier once: the pruned one is a head too, and of a single head all are the same."""
    heads = {f"head {i}: {head['name']}": head for i, head in enumerate(view["heads"])}
    if len(heads) == 1:
        return {f"the one head: {view['heads'][0]['name']}": view["full"]}
    rows = {name: view[name] for name in apart(view)}
    if len(rows) == 1 and view["pruned"]:
        rows = {"pruned and full": view["full"]}
    if first := next((title for title, head in heads.items() if head["name"] == "r0"), None):
        del heads[first]
        rows = {f"pruned ({first})": view["pruned"], "full": view["full"]}
    return rows | heads


def apart(view: dict[str, Any]) -> list[str]:
    """Which of ``pruned`` and ``full`` differ: only one of them for a single head, or an ensemble of single heads."""
    alike = len(view["heads"]) == 1 or view["pruned"] in (None, view["full"])
    return ["full"] if alike else ["pruned", "full"]


def _members(name: str, view: dict[str, Any]) -> str:
    """Whose mean a row is: of a run its heads', of an ensemble its runs'."""
    if view["heads"]:
        return "heads"
    if len(apart(view)) == 1 and view["pruned"]:
        return "runs"
    return "runs' pruned classifiers" if name == "pruned" else "runs' full models"


def _disagreement(who: str, entry: dict[str, Any], explained: bool) -> str:
    split, apart = f"{100 * entry['split_votes']:.1f} % of the images", f"{entry['disagreement']:.4f} nats"
    auroc = None if entry["error_auroc"] is None else f"{entry['error_auroc']:.3f}"
    if explained:
        return f"{who} differ for {split}, by {apart}" + (f", with an AUROC of {auroc}." if auroc else ".")
    finds = (
        f" How far they differ tells wrong answers from right ones with an AUROC of {auroc}, where 0.5 is chance and 1 "
        "never fails."
        if auroc
        else ""
    )
    return (
        f"{who} do not all choose the same class for {split}; their probabilities differ by {apart} on average, where "
        f"0 is agreement.{finds}"
    )
