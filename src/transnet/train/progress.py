"""What a person sees of a run: a live line in a terminal, its scores as a table, in a log how it began and ended."""

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table


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


def print_scores(views: dict[str, dict[str, Any] | None]) -> None:
    """A table of the pruned and full classifier and every head, and what their disagreement says where it is known.

    Args:
        views: title → scores as in ``result.json``, such as plain and with flip; None is left out.
    """
    shown = {title: view for title, view in views.items() if view}
    some = next(iter(shown.values()))
    calibrated = "calibration_error" in some["full"]
    table = Table()
    table.add_column("")
    for title in shown:
        for column in ("passes", "accuracy %", "loss", *(["calibration\nerror %"] if calibrated else [])):
            table.add_column(f"{column}\n{title}", justify="right")
    rows = {"pruned": [view["pruned"] for view in shown.values()], "full": [view["full"] for view in shown.values()]}
    for i, head in enumerate(some["heads"]):
        rows[f"head {i}: {head['name']}"] = [view["heads"][i] for view in shown.values()]
    for title, entries in rows.items():
        if entries[0]:
            cells = []
            for entry in entries:
                cells += [str(entry["passes"]), f"{100 * entry['accuracy']:.2f}", f"{entry['loss']:.4f}"]
                cells += [f"{100 * entry['calibration_error']:.2f}"] if calibrated else []
            table.add_row(title, *cells)
    console = Console()
    console.print(table)
    for title in ("pruned", "full"):
        entry = some[title]
        if entry and "disagreement" in entry:
            console.print(f"{title}: {_disagreement(entry)}", highlight=False, soft_wrap=True)


def _disagreement(entry: dict[str, Any]) -> str:
    auroc = entry["error_auroc"]
    finds = f"; tells wrong from right answers with an AUROC of {auroc:.3f}" if auroc is not None else ""
    return (
        f"members disagree by {entry['disagreement']:.4f} nats on average and split their votes on "
        f"{100 * entry['split_votes']:.1f} % of the images{finds}"
    )
