"""Tables 2, 3 and 4 from finished runs: ours beside the paper's, each gain with its price and its error.

Every cell says how many runs stand behind it. ± is the standard error; a difference carries Welch's 95 % interval. A
figure is bold only where its lead over the second best is outside the error, so never with one seed.
"""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from transnet.measure.metrics import Difference, difference, mean_and_error
from transnet.study.finished import FinishedRun, Group
from transnet.study.paper import Published, published

# Of each table: (title, kind of run, which classifier of it), in the paper's order.
_EQUAL = tuple((f"base, {m}× epochs", f"base-x{m}", "pruned") for m in (2, 3, 4))
_ROWS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "pruned": (("base", "base", "pruned"), *((f"PT{m}", f"t{m}", "pruned") for m in (2, 3, 4)), *_EQUAL),
    "full": (("base", "base", "full"), *((f"T{m}", f"t{m}", "full") for m in (2, 3, 4)), *_EQUAL),
    "ablation": (
        ("base", "base", "pruned"), ("Alg. only", "alg", "pruned"), ("Arch. only", "arch", "pruned"),
        ("PT2", "t2", "pruned"), _EQUAL[0],
    ),
}  # fmt: skip
TITLES = {
    "pruned": "Table 2: base and pruned, the same cost at prediction",
    "full": "Table 3: base and all heads, m times the cost at prediction",
    "ablation": "Table 4: the algorithm alone, the architecture alone, both",
}


@dataclass(frozen=True)
class Row:
    """One row: accuracies in percent, one a run, and what they cost."""

    name: str
    values: tuple[float, ...]
    to_base: Difference | None
    paper: Published | None
    train_passes: int
    predict_passes: int
    parameters: int | None
    leads: bool = False

    @property
    def mean(self) -> float:
        """Of the runs."""
        return mean_and_error(self.values)[0]

    @property
    def error(self) -> float | None:
        """The standard error; None for one run."""
        return mean_and_error(self.values)[1]

    @property
    def to_paper(self) -> tuple[float, float | None] | None:
        """Ours − the paper's, with the standard error of that difference."""
        if self.paper is None:
            return None
        error = math.hypot(self.error, self.paper.error) if self.error is not None else None
        return self.mean - self.paper.accuracy, error


@dataclass(frozen=True)
class Table:
    """A table of the paper on one data set, by one recipe."""

    target: str
    title: str
    group: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def table(group: Group, target: str) -> Table | None:
    """The table of a target; None where base or every other row of it is missing."""
    found = [(name, part, runs) for name, kind, part in _ROWS[target] if (runs := group.compared(kind))]
    if len(found) < 2 or found[0][0] != "base":
        return None
    base = _accuracies(found[0][2], found[0][1])
    parameters = found[0][2][0].result["cost"]["parameters"]
    rows = []
    for name, part, runs in found:
        values, cost = _accuracies(runs, part), runs[0].result["cost"]
        rows.append(
            Row(
                name, values, difference(values, base) if name != "base" else None, published(name, group.data),
                cost["train_passes"], runs[0].score(part)["passes"],
                cost["parameters"] if part == "full" else parameters,
            )
        )  # fmt: skip
    return Table(target, TITLES[target], group.name, tuple(_mark_leader(rows)), _notes(group, rows))


def _accuracies(runs: Sequence[FinishedRun], part: str) -> tuple[float, ...]:
    return tuple(100 * run.score(part)["accuracy"] for run in runs)


def _mark_leader(rows: list[Row]) -> list[Row]:
    best, second = sorted(rows, key=lambda row: row.mean, reverse=True)[:2]
    leads = difference(best.values, second.values).certain
    return [replace(row, leads=leads and row is best) for row in rows]


def _notes(group: Group, rows: Sequence[Row]) -> tuple[str, ...]:
    some = group.some
    settings, data = some.settings, some.result["config"]["data"]
    images = f"{data['sizes']['train']:,} training and {data['sizes']['test']:,} test images"
    flip = some.protocol == "test_flip"
    notes = [
        f"{group.data}, {settings['model']}, recipe {settings['recipe']}, {images}. "
        "Base and TransNet share recipe, seeds and test protocol; nothing was selected on the test set.",
        "Tested on each image and its mirror image, outputs averaged (the paper's protocol; two passes each)."
        if flip
        else "Tested on the plain image: this data set is not mirrored in training, so it is not in the test.",
        "base, m× epochs: as many training passes as m heads take.",
    ]
    sizes = sorted({len(row.values) for row in rows})
    if sizes == [1]:
        notes.append("One seed: no errors, no intervals, nothing bold.")
    else:
        notes.append(
            f"Mean ± standard error over n = {', '.join(map(str, sizes))} seeds; differences with Welch's 95 % interval. "
            "Bold: ahead of the second best by more than the error."
        )
    if any(row.paper for row in rows):
        notes.append("The paper: mean ± standard error over 3 repetitions.")
    if group.failed:
        notes.append(f"Failed and missing: {', '.join(group.failed)}.")
    return tuple(notes)


COLUMNS = (
    "model", "accuracy %", "n", "to base", "paper %", "ours − paper", "training passes", "passes an image",
    "parameters",
)  # fmt: skip


def cells(row: Row) -> tuple[str, ...]:
    """A row as text, by `COLUMNS`."""
    to_paper = row.to_paper
    return (
        row.name,
        figure(row.mean, row.error),
        str(len(row.values)) if len(row.values) > 1 else "1 (one seed)",
        _interval(row.to_base),
        figure(row.paper.accuracy, row.paper.error) if row.paper else "–",
        figure(to_paper[0], to_paper[1], signed=True) if to_paper else "–",
        f"{row.train_passes:,}",
        str(row.predict_passes),
        f"{row.parameters:,}" if row.parameters else "–",
    )


def figure(mean: float, error: float | None, *, signed: bool = False, digits: int = 2) -> str:
    """79.33 ± 0.15, or the mean alone where there is no error."""
    return f"{mean:{'+' if signed else ''}.{digits}f}" + (f" ± {error:.{digits}f}" if error is not None else "")


def _interval(value: Difference | None) -> str:
    if value is None:
        return "–"
    interval = f" [{value.low:+.2f}, {value.high:+.2f}]" if value.low is not None else ""
    return f"{value.mean:+.2f}{interval}"


def markdown(tables: Sequence[Table]) -> str:
    """All tables as Markdown."""
    parts = []
    for item in tables:
        lines = [f"## {item.title} ({item.group})", "", "| " + " | ".join(COLUMNS) + " |"]
        lines.append("|---|" + "---:|" * (len(COLUMNS) - 1))
        for row in item.rows:
            text = list(cells(row))
            if row.leads:
                text[1] = f"**{text[1]}**"
            lines.append("| " + " | ".join(text) + " |")
        parts.append("\n".join([*lines, "", *(f"{note}  " for note in item.notes)]))
    return "\n\n".join(parts) + "\n"


def comma_separated(tables: Sequence[Table]) -> str:
    """All tables as one CSV: a line a row, numbers unrounded, every run's accuracy in the last column."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        (
            "table", "group", "model", "accuracy", "standard_error", "n", "to_base", "to_base_low", "to_base_high",
            "paper", "paper_standard_error", "to_paper", "to_paper_standard_error", "train_passes", "predict_passes",
            "parameters", "leads", "values",
        )
    )  # fmt: skip
    for item in tables:
        for row in item.rows:
            writer.writerow(
                (
                    item.target, item.group, row.name, row.mean, row.error, len(row.values),
                    *(row.to_base or (None, None, None)), *(row.paper or (None, None)),
                    *(row.to_paper or (None, None)), row.train_passes, row.predict_passes, row.parameters,
                    row.leads, " ".join(f"{value:.4f}" for value in row.values),
                )
            )  # fmt: skip
    return out.getvalue()
