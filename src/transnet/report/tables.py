"""Accuracy tables from finished runs: the paper's Tables 2 to 4 beside its own numbers, and tables of any variants.

The paper tests on every image and its horizontal flip. An exported network sees the image alone, so two tables of the
project's own (``unmirrored``, ``taught``) report that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from transnet.report import table_format as cells
from transnet.report.paper import BY_HEADS, LONGER, NAMES, Published, name_of, published
from transnet.report.table_format import EMPTY, NO_SPREAD, Cell, Table
from transnet.study.results import FinishedRun, Series
from transnet.study.statistics import Difference, difference, mean_and_error

BASELINE, *_PRUNED = ((kind, "pruned") for kind in BY_HEADS)
_FULL = [(kind, "full") for kind, _ in _PRUNED]
_LONGER = [(kind, "pruned") for kind in LONGER]
_DISTILLED = [("t2-taught", "pruned"), ("t2-taught", "full")]
PAPER_TEST = "If training flips images, each test image is averaged with its horizontal flip, as in the paper."
IMAGE_ALONE = "Tested on the image alone, without flip TTA. The paper has no such figures."


@dataclass(frozen=True)
class Plan:
    """What a table contains.

    Attributes:
        title: heading.
        rows: kinds of run and which classifier of each, in the paper's order.
        needs: kinds of which at least one must have been trained.
        image_alone: tested without flip TTA; the paper has no such table.
    """

    title: str
    rows: Sequence[tuple[str, str]]
    needs: tuple[str, ...]
    image_alone: bool = False


PLANS = {
    "pruned": Plan("Table 2: baseline and pruned networks, at the same cost", [BASELINE, *_PRUNED, *_LONGER], BY_HEADS),
    "full": Plan("Table 3: baseline and all heads, at m times the cost", [BASELINE, *_FULL, *_LONGER], BY_HEADS),
    "unmirrored": Plan(
        "Tables 2 and 3 without flip TTA: one pass per head", [BASELINE, *_PRUNED, *_FULL, *_LONGER], BY_HEADS, True
    ),
    "ablation": Plan(
        "Table 4: the algorithm alone, the architecture alone, both",
        [BASELINE, ("alg", "pruned"), ("arch", "pruned"), _PRUNED[0], _LONGER[0]],
        ("alg", "arch"),
    ),
    "taught": Plan(
        "Beyond the paper: the self-distilled pruned head",
        [BASELINE, _PRUNED[0], _DISTILLED[0], _FULL[0], _DISTILLED[1], _LONGER[0]],
        ("t2-taught",),
        True,
    ),
}
COLUMNS = (
    "model", "accuracy %", "n", "to baseline", "at equal compute", "paper %", "ours − paper", "training passes",
    "passes per image", "parameters",
)  # fmt: skip
NOTES = (
    "Mean ± standard error over n seeds; differences in points with Welch's 95 % interval. A difference whose interval "
    "contains zero is not significant.",
    "At equal compute: difference to the baseline at equal training compute (baseline, m× epochs), which has as many "
    "training passes as m heads.",
    NO_SPREAD + " Bold: significantly ahead of the second best.",
)


@dataclass(frozen=True)
class Row:
    """A classifier: its accuracies in percent, one per run, its differences and its cost.

    ``seconds`` are training times of the runs that shared their device with the fewest others (``at_once``).
    """

    name: str
    accuracies: tuple[float, ...]
    to_baseline: Difference | None
    to_longer: Difference | None
    paper: Published | None
    train_passes: int
    predict_passes: int
    parameters: int
    seconds: tuple[float, ...]
    at_once: int
    leads: bool = False

    @property
    def mean(self) -> float:
        """Mean accuracy over the runs."""
        return mean_and_error(self.accuracies)[0]

    @property
    def error(self) -> float | None:
        """Its standard error; None for one run."""
        return mean_and_error(self.accuracies)[1]


def accuracies(runs: Sequence[FinishedRun], part: str, flip: bool | None = None) -> tuple[float, ...]:
    """Accuracies in percent of ``pruned`` or ``full``, by default as the paper tests."""
    return tuple(100 * run.score(part, flip).accuracy for run in runs)


def rows_of(series: Series, key: str, flip: bool | None = None) -> list[Row]:
    """The rows of a table; none if the baseline or all other rows are missing, or another table has them.

    Args:
        series: the runs.
        key: the table, of `PLANS`.
        flip: with or without flip TTA, if other than the table has it.
    """
    plan = PLANS[key]
    found = [(kind, part, runs) for kind, part in plan.rows if (runs := series.of(kind))]
    if len(found) < 2 or found[0][0] != "base" or not any(series.of(kind) for kind in plan.needs):
        return []
    if key == "unmirrored" and not series.first.uses_flip:
        return []
    if plan.image_alone and flip is None:
        flip = False
    baseline = found[0][2]
    plain = accuracies(baseline, "pruned", flip)
    rows = []
    for kind, part, runs in found:
        name, values, cost = name_of(kind, part), accuracies(runs, part, flip), runs[0].result.cost
        at_once = min(run.result.at_once for run in runs)
        longer = series.of(f"base-x{len(runs[0].result.test.heads)}")
        rows.append(
            Row(
                name=name,
                accuracies=values,
                to_baseline=difference(values, plain) if kind != "base" else None,
                to_longer=difference(values, accuracies(longer, "pruned", flip)) if longer else None,
                paper=published(name, series.first.result.config.data.name) if not plan.image_alone else None,
                train_passes=cost.train_passes,
                predict_passes=runs[0].score(part, flip).passes,
                # A pruned network, and one head shared by all transforms, is as large as the baseline.
                parameters=cost.parameters if part == "full" else baseline[0].result.cost.parameters,
                seconds=tuple(run.result.train_seconds for run in runs if run.result.at_once == at_once),
                at_once=at_once,
            )
        )
    best, second = sorted(rows, key=lambda row: row.mean, reverse=True)[:2]
    leads = cells.is_significant(difference(best.accuracies, second.accuracies))
    return [replace(row, leads=leads and row is best) for row in rows]


def accuracy_tables(series: Series) -> list[Table]:
    """All tables that a series has runs for."""
    found = [table for key in PLANS if (table := paper_table(series, key))]
    if not series.runs.keys() <= NAMES.keys():
        found.append(variants_table(series))
    return found


def paper_table(series: Series, key: str) -> Table | None:
    """One of the paper's tables, or None without its runs."""
    rows = rows_of(series, key)
    if not rows:
        return None
    test = IMAGE_ALONE if PLANS[key].image_alone else PAPER_TEST
    shown = tuple(_cells(row) for row in rows)
    return Table(key, PLANS[key].title, COLUMNS, shown, (test, *NOTES)).without_empty_columns()


def _cells(row: Row) -> tuple[Cell, ...]:
    accuracy = cells.with_error(row.mean, row.error, bold=row.leads)
    each = tuple((f"run {i}", value) for i, value in enumerate(row.accuracies, 1))
    to_paper = EMPTY
    if row.paper:
        error = math.hypot(row.error, row.paper.error) if row.error is not None else None
        to_paper = cells.with_error(row.mean - row.paper.accuracy, error, "+.2f")
    return (
        cells.text(row.name), replace(accuracy, more=(*accuracy.more, *each)), cells.seeds(len(row.accuracies)),
        cells.gap(row.to_baseline), cells.gap(row.to_longer), cells.with_error(*row.paper) if row.paper else EMPTY,
        to_paper, cells.count(row.train_passes), cells.count(row.predict_passes), cells.count(row.parameters),
    )  # fmt: skip


def parts_of(run: FinishedRun) -> tuple[str, ...]:
    """The classifiers that a run can be: pruned if it has several heads and one of them is r0, and full."""
    return ("pruned", "full") if len(run.result.test.heads) > 1 and run.result.test.pruned else ("full",)


def variants_table(series: Series) -> Table:
    """Every variant of a study, whatever it is called: pruned and all heads, without and with flip TTA."""
    rows = []
    for kind in dict.fromkeys(run.kind for run in series.all_runs):
        runs = series.of(kind)
        heads, cost = len(runs[0].result.test.heads), runs[0].result.cost
        flips = all(run.uses_flip for run in runs)
        rows += [
            (
                cells.text(name_of(kind, part, heads)), cells.mean_of(accuracies(runs, part, False)),
                cells.mean_of(accuracies(runs, part, True)) if flips else EMPTY,
                cells.seeds(len(runs)), cells.count(cost.train_passes), cells.count(runs[0].score(part, False).passes),
                cells.count(cost.parameters) if part == "full" else EMPTY,
            )
            for part in parts_of(runs[0])
        ]  # fmt: skip
    columns = ("variant", "accuracy %", "flip TTA %", "n", "training passes", "passes per image", "parameters")
    notes = (
        "Mean ± standard error over n seeds. Flip TTA averages the outputs on an image and its horizontal flip, at "
        "twice the passes. A pruned network has the parameters of the network that was wrapped.",
        NO_SPREAD,
    )
    return Table("variants", "Every variant", columns, tuple(rows), notes).without_empty_columns()


@dataclass(frozen=True)
class Classifier:
    """One way to predict: the pruned or full classifier of a kind of run, without or with flip TTA."""

    kind: str
    part: str
    flip: bool

    def accuracies(self, series: Series) -> tuple[float, ...]:
        """One accuracy in percent per run."""
        return accuracies(series.of(self.kind), self.part, self.flip)

    def name(self, series: Series) -> str:
        """What tables call it."""
        heads = len(series.of(self.kind)[0].result.test.heads)
        return name_of(self.kind, self.part, heads) + (", flip TTA" if self.flip else "")


def differences_table(series: Series) -> Table | None:
    """Differences that the paper's tables leave open, and those that the study's file asks for."""
    flips = (False, True) if series.first.uses_flip else (False,)
    named = [("t2-taught", "t2", "pruned"), ("t2-taught", "t2", "full"), ("t2", "alg", "pruned")]
    pairs = [(Classifier(a, part, flip), Classifier(b, part, flip)) for a, b, part in named for flip in flips]
    if series.first.uses_flip:  # the same training compute and two passes per image each
        pairs += [
            (Classifier(kind, "full", False), Classifier("base-x2", "pruned", True)) for kind in ("t2", "t2-taught")
        ]
    for one in series.compare:
        if {one.a, one.b} <= series.runs.keys() and not {one.a, one.b} <= NAMES.keys():  # else the tables have it
            theirs = parts_of(series.of(one.b)[0])
            pairs += [
                (Classifier(one.a, part, flip), Classifier(one.b, part if part in theirs else "full", flip))
                for part in parts_of(series.of(one.a)[0])
                for flip in flips
            ]
    rows = []
    for a, b in pairs:
        if series.of(a.kind) and series.of(b.kind):
            found = difference(a.accuracies(series), b.accuracies(series))
            rows.append(
                (
                    cells.text(a.name(series)), cells.text(b.name(series)), cells.gap(found),
                    cells.text(cells.verdict(found) or "–"), cells.count(found.n[0]), cells.count(found.n[1]),
                )
            )  # fmt: skip
    columns = ("model", "compared with", "difference in points", "model is", "n", "n of the other")
    note = "Differences of mean accuracies with Welch's 95 % interval. Flip TTA takes twice the passes."
    return Table("differences", "Differences", columns, tuple(rows), (note, NO_SPREAD)) if rows else None


def summary_table(series: Series) -> Table | None:
    """What m heads gain over the baseline, and over the baseline at equal training compute, in points."""
    flips = (True, False) if series.first.uses_flip else (False,)
    columns = ["model"]
    found: dict[str, list[Cell]] = {}
    for flip in flips:
        test = "flip TTA" if flip else "image alone"
        columns += [f"to baseline, {test}", f"at equal compute, {test}"]
        rows = {row.name: row for key in ("pruned", "full", "taught") for row in rows_of(series, key, flip)}
        for name, row in rows.items():
            if not name.startswith("baseline"):
                found.setdefault(name, []).extend(_judged(gap) for gap in (row.to_baseline, row.to_longer))
    rows_ = tuple((cells.text(name), *judged) for name, judged in found.items())
    note = (
        "Ahead or behind: the 95 % interval of the difference excludes zero. At equal compute: compared with the "
        "baseline at equal training compute."
    )
    table = Table("summary", "Gains in points of accuracy", tuple(columns), rows_, (note,))
    return table.without_empty_columns() if rows_ else None


def _judged(value: Difference | None) -> Cell:
    if value is None:
        return EMPTY
    return Cell(f"{cells.number(value.mean, '+.2f')} {cells.verdict(value)}".strip(), value.mean)
