"""Accuracy tables from finished runs: the paper's Tables 2 to 4 beside its own numbers, and tables of any variants.

The paper tests on every image and its horizontal flip. An exported network sees the image alone, so two tables of the
project's own (``unmirrored``, ``taught``) report that.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from transnet.report import table_format as cells
from transnet.report.paper import BY_HEADS, LONGER, NAMES, Published, name_of, published
from transnet.report.table_format import EMPTY, Cell, Table
from transnet.study.results import FinishedRun, Series
from transnet.study.statistics import Difference, as_text, difference, mean_and_error

BASELINE, *_PRUNED = ((kind, "pruned") for kind in BY_HEADS)
_FULL = [(kind, "full") for kind, _ in _PRUNED]
_LONGER = [(kind, "pruned") for kind in LONGER]
_DISTILLED = [("t2-taught", "pruned"), ("t2-taught", "full")]


@dataclass(frozen=True)
class Layout:
    """What a table contains.

    Attributes:
        rows: kinds of run and which classifier of each, in the paper's order.
        needs: kinds of which at least one must have been trained.
        image_alone: tested without flip TTA; the paper has no such table.
    """

    rows: Sequence[tuple[str, str]]
    needs: tuple[str, ...]
    image_alone: bool = False


LAYOUTS = {
    "pruned": Layout([BASELINE, *_PRUNED, *_LONGER], BY_HEADS),
    "full": Layout([BASELINE, *_FULL, *_LONGER], BY_HEADS),
    "unmirrored": Layout([BASELINE, *_PRUNED, *_FULL, *_LONGER], BY_HEADS, image_alone=True),
    "ablation": Layout(
        [BASELINE, ("alg", "pruned"), ("arch", "pruned"), _PRUNED[0], _LONGER[0]], needs=("alg", "arch")
    ),
    "taught": Layout(
        [BASELINE, _PRUNED[0], _DISTILLED[0], _FULL[0], _DISTILLED[1], _LONGER[0]], ("t2-taught",), image_alone=True
    ),
}
COLUMNS = (
    "model", "accuracy %", "n", "to baseline", "at equal compute", "paper %", "ours − paper", "training passes",
    "passes per image", "parameters",
)  # fmt: skip


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


def accuracies(runs: Sequence[FinishedRun], part: str, flip: bool | None = None) -> tuple[float, ...]:
    """Accuracies in percent of ``pruned`` or ``full``, by default as the paper tests."""
    return tuple(100 * run.score(part, flip).accuracy for run in runs)


def rows_of(series: Series, key: str, flip: bool | None = None) -> list[Row]:
    """The rows of a table of `LAYOUTS`; none if the baseline or all other rows are missing, or another table has them.

    ``flip`` is with or without flip TTA, if other than the table has it.
    """
    layout = LAYOUTS[key]
    found = [(kind, part, runs) for kind, part in layout.rows if (runs := series.of(kind))]
    baseline = series.of("base")
    if len(found) < 2 or not baseline or not any(series.of(kind) for kind in layout.needs):
        return []
    if key == "unmirrored" and not series.first.uses_flip:
        return []
    if layout.image_alone and flip is None:
        flip = False
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
                paper=published(name, series.data) if not layout.image_alone else None,
                train_passes=cost.train_passes,
                predict_passes=runs[0].score(part, flip).passes,
                # A pruned network, and one head shared by all transforms, is as large as the baseline.
                parameters=cost.parameters if part == "full" else baseline[0].result.cost.parameters,
                seconds=tuple(run.result.train_seconds for run in runs if run.result.at_once == at_once),
                at_once=at_once,
            )
        )
    best, second = sorted(rows, key=lambda row: statistics.fmean(row.accuracies), reverse=True)[:2]
    leads = difference(best.accuracies, second.accuracies).certain
    return [replace(row, leads=leads and row is best) for row in rows]


def accuracy_tables(series: Series) -> list[Table]:
    """All tables that a series has runs for, except the summary."""
    found = [paper_table(series, key) for key in LAYOUTS]
    if not series.runs.keys() <= NAMES.keys():
        found.append(variants_table(series))
    found.append(differences_table(series))
    return [table for table in found if table]


def paper_table(series: Series, key: str) -> Table | None:
    """One of the paper's tables, or None without its runs."""
    rows = [_cells(row) for row in rows_of(series, key)]
    return Table(key, COLUMNS, rows).without_empty_columns() if rows else None


def _cells(row: Row) -> list[Cell]:
    mean, error = mean_and_error(row.accuracies)
    accuracy = cells.with_error(mean, error)
    each = {f"run {i}": value for i, value in enumerate(row.accuracies, 1)}
    paper = to_paper = EMPTY
    if row.paper:
        paper = cells.with_error(*row.paper)
        both = math.hypot(error, row.paper.error) if error is not None else None
        to_paper = cells.with_error(mean - row.paper.accuracy, both, "+.2f")
    return [
        cells.text(row.name), replace(accuracy, more={**accuracy.more, **each}, bold=row.leads),
        cells.seeds(len(row.accuracies)), cells.gap(row.to_baseline), cells.gap(row.to_longer), paper, to_paper,
        cells.integer(row.train_passes), cells.integer(row.predict_passes), cells.integer(row.parameters),
    ]  # fmt: skip


def _parts(run: FinishedRun) -> tuple[str, ...]:
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
            [
                cells.text(name_of(kind, part, heads)), cells.mean_of(accuracies(runs, part, False)),
                cells.mean_of(accuracies(runs, part, True)) if flips else EMPTY,
                cells.seeds(len(runs)), cells.integer(cost.train_passes),
                cells.integer(runs[0].score(part, False).passes),
                cells.integer(cost.parameters) if part == "full" else EMPTY,
            ]
            for part in _parts(runs[0])
        ]  # fmt: skip
    columns = ("variant", "accuracy %", "flip TTA %", "n", "training passes", "passes per image", "parameters")
    return Table("variants", columns, rows).without_empty_columns()


def differences_table(series: Series) -> Table | None:
    """Differences that the paper's tables leave open, and those that the study's file asks for."""
    named = [("t2-taught", "t2", "pruned"), ("t2-taught", "t2", "full"), ("t2", "alg", "pruned")]
    flips = (False, True) if series.first.uses_flip else (False,)
    # A classifier is a kind of run, its part, and whether it is tested with flip TTA.
    pairs = [((a, part, flip), (b, part, flip)) for a, b, part in named for flip in flips]
    if series.first.uses_flip:  # the same training compute and two passes per image each
        pairs += [((kind, "full", False), ("base-x2", "pruned", True)) for kind in ("t2", "t2-taught")]
    for one in series.compare:
        if {one.a, one.b} <= series.runs.keys() and not {one.a, one.b} <= NAMES.keys():  # else the tables have it
            parts, others = (_parts(series.of(kind)[0]) for kind in (one.a, one.b))
            pairs += [
                ((one.a, part, flip), (one.b, part if part in others else "full", flip))
                for part in parts for flip in flips
            ]  # fmt: skip
    rows = []
    for pair in pairs:
        sides = [series.of(kind) for kind, _, _ in pair]
        if all(sides):
            found = difference(*(accuracies(runs, part, flip) for runs, (_, part, flip) in zip(sides, pair)))
            names = [
                cells.text(name_of(kind, part, len(runs[0].result.test.heads)) + (", flip TTA" if flip else ""))
                for runs, (kind, part, flip) in zip(sides, pair)
            ]
            judged = cells.text(cells.verdict(found) or "–")
            rows.append([*names, cells.gap(found), judged, *(cells.integer(n) for n in found.n)])
    columns = ("model", "compared with", "difference in points", "model is", "n", "n of the other")
    return Table("differences", columns, rows) if rows else None


def summary_table(series: Series) -> Table | None:
    """What m heads gain over the baseline, and over the baseline at equal training compute, in points."""
    columns = ["model"]
    rows: dict[str, list[Cell]] = {}
    for flip in (True, False) if series.first.uses_flip else (False,):
        test = "flip TTA" if flip else "image alone"
        columns += [f"to baseline, {test}", f"at equal compute, {test}"]
        found = {row.name: row for key in ("pruned", "full", "taught") for row in rows_of(series, key, flip)}
        for name, row in found.items():
            if not name.startswith("baseline"):
                rows.setdefault(name, [cells.text(name)]).extend(
                    _judged(gap) for gap in (row.to_baseline, row.to_longer)
                )
    return Table("summary", columns, list(rows.values())).without_empty_columns() if rows else None


def _judged(value: Difference | None) -> Cell:
    if value is None:
        return EMPTY
    return Cell(f"{as_text(value.mean, '+.2f')} {cells.verdict(value)}".strip(), value.mean)
