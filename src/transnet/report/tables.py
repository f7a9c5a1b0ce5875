"""Accuracy tables from finished runs: the paper's Tables 2 to 4 beside its own numbers, and tables of any variants.

The paper tests on every image and its horizontal flip. An exported network sees the image alone, so two tables of the
project's own (``unmirrored``, ``taught``) report that.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from transnet.report import table_format as cells
from transnet.report.table_format import EMPTY, TEXTS, Cell, Table
from transnet.study.results import KINDS, FinishedRun, Series
from transnet.study.statistics import Difference, as_text, difference, mean_and_error

BY_HEADS = ("base", "t2", "t3", "t4")
LONGER = ("base-x2", "base-x3", "base-x4")  # baselines at equal training compute
BASELINE, *_PRUNED = ((kind, "pruned") for kind in BY_HEADS)
_FULL = [(kind, "full") for kind, _ in _PRUNED]
_LONGER = [(kind, "pruned") for kind in LONGER]
_DISTILLED = [_PRUNED[0], ("t2-taught", "pruned"), _FULL[0], ("t2-taught", "full")]


class Layout(NamedTuple):
    """The rows of a table: kinds of run and which classifier of each, in the paper's order."""

    rows: Sequence[tuple[str, str]]
    needs: Sequence[str] = ("base",)  # kinds of which at least one must have been trained
    image_alone: bool = False  # tested without flip TTA; the paper has no such table


LAYOUTS = {
    "pruned": Layout([BASELINE, *_PRUNED, *_LONGER]),
    "full": Layout([BASELINE, *_FULL, *_LONGER]),
    "unmirrored": Layout([BASELINE, *_PRUNED, *_FULL, *_LONGER], image_alone=True),
    "ablation": Layout([BASELINE, ("alg", "pruned"), ("arch", "pruned"), _PRUNED[0], _LONGER[0]], ("alg", "arch")),
    "taught": Layout([BASELINE, *_DISTILLED, _LONGER[0]], ("t2-taught",), image_alone=True),
}


@dataclass(frozen=True)
class Row:
    """A classifier in a table: its runs, their accuracies in percent, its differences and its cost."""

    name: str
    runs: Sequence[FinishedRun]
    accuracies: tuple[float, ...]
    to_baseline: Difference | None
    to_longer: Difference | None
    paper: tuple[float, float] | None
    train_passes: int
    predict_passes: int
    parameters: int


def published(row: str, data: str) -> tuple[float, float] | None:
    """What the paper reports on a data set, if it does: accuracy in percent, standard error over 3 repetitions."""
    cell = TEXTS["published"].get(row, {}).get(data)
    return tuple(cell) if cell else None


def name_of(kind: str, part: str, heads: int = 1) -> str:
    """What a table calls a kind's ``pruned`` or ``full`` classifier; variants of a user's own keep their name."""
    if names := TEXTS["names"].get(kind):
        return str(names[part])
    return kind if heads == 1 else f"{kind}, {'all heads' if part == 'full' else 'pruned'}"


def accuracies(runs: Sequence[FinishedRun], part: str, flip: bool | None = None) -> tuple[float, ...]:
    """Accuracies in percent of ``pruned`` or ``full``, by default as the paper tests."""
    return tuple(100 * run.score(part, flip).accuracy for run in runs)


def rows_of(series: Series, key: str, flip: bool | None = None) -> list[Row]:
    """The rows of a table, tested with or without ``flip`` TTA; none without a comparison to show."""
    layout, baseline = LAYOUTS[key], series.of("base")
    classifiers = [(kind, part, runs) for kind, part in layout.rows if (runs := series.of(kind))]
    if len(classifiers) < 2 or not baseline or not any(series.of(kind) for kind in layout.needs):
        return []
    if key == "unmirrored" and not series.first.uses_flip:
        return []
    if layout.image_alone and flip is None:
        flip = False
    plain = accuracies(baseline, "pruned", flip)
    rows = []
    for kind, part, runs in classifiers:
        name, values = name_of(kind, part), accuracies(runs, part, flip)
        longer = series.of(f"base-x{len(runs[0].result.test.heads)}")
        rows.append(
            Row(
                name=name,
                runs=runs,
                accuracies=values,
                to_baseline=difference(values, plain) if kind != "base" else None,
                to_longer=difference(values, accuracies(longer, "pruned", flip)) if longer else None,
                paper=published(name, series.data) if not layout.image_alone else None,
                train_passes=runs[0].result.cost.train_passes,
                predict_passes=runs[0].score(part, flip).passes,
                # A pruned network, and one head shared by all transforms, is as large as the baseline.
                parameters=(runs if part == "full" else baseline)[0].result.cost.parameters,
            )
        )
    return rows


def accuracy_tables(series: Series) -> list[Table]:
    """All tables that a series has runs for, except the summary."""
    tables = [paper_table(series, key) for key in LAYOUTS]
    if not series.runs.keys() <= set(KINDS):
        tables.append(_variants_table(series))
    tables.append(differences_table(series))
    return [table for table in tables if table]


def paper_table(series: Series, key: str) -> Table | None:
    """One of the paper's tables, or None without its runs. A significantly best classifier is bold."""
    rows = rows_of(series, key)
    if not rows:
        return None
    best, second = sorted(rows, key=lambda row: statistics.fmean(row.accuracies), reverse=True)[:2]
    leads = difference(best.accuracies, second.accuracies).certain
    lines = []
    for row in rows:
        mean, error = mean_and_error(row.accuracies)
        each = {f"run {i}": value for i, value in enumerate(row.accuracies, 1)}
        accuracy = cells.with_error(mean, error)
        paper = to_paper = EMPTY
        if row.paper:
            paper = cells.with_error(*row.paper)
            both = math.hypot(error, row.paper[1]) if error is not None else None
            to_paper = cells.with_error(mean - row.paper[0], both, "+.2f")
        lines.append([
            cells.plain(row.name), replace(accuracy, more={**accuracy.more, **each}, bold=leads and row is best),
            cells.seeds(len(row.accuracies)), cells.gap(row.to_baseline), cells.gap(row.to_longer), paper, to_paper,
            *map(cells.plain, (row.train_passes, row.predict_passes, row.parameters)),
        ])  # fmt: skip
    columns = (
        "model", "accuracy %", "n", "to baseline", "at equal compute", "paper %", "ours − paper", "training passes",
        "passes per image", "parameters",
    )  # fmt: skip
    return Table(key, columns, lines).without_empty_columns()


def _parts(run: FinishedRun) -> tuple[str, ...]:
    """The classifiers that a run can be: pruned if it has several heads and one of them is r0, and full."""
    return ("pruned", "full") if len(run.result.test.heads) > 1 and run.result.test.pruned else ("full",)


def _variants_table(series: Series) -> Table:
    """Every variant of a study, whatever it is called: pruned and all heads, without and with flip TTA."""
    rows = []
    for kind in dict.fromkeys(run.kind for run in series.all_runs):
        runs, first = series.of(kind), series.of(kind)[0]
        for part in _parts(first):
            name, cost = name_of(kind, part, len(first.result.test.heads)), first.result.cost
            flips = all(run.uses_flip for run in runs)
            rows.append([
                cells.plain(name), cells.mean_of(accuracies(runs, part, False)),
                cells.mean_of(accuracies(runs, part, True)) if flips else EMPTY, cells.seeds(len(runs)),
                cells.plain(cost.train_passes), cells.plain(first.score(part, False).passes),
                cells.plain(cost.parameters) if part == "full" else EMPTY,
            ])  # fmt: skip
    columns = ("variant", "accuracy %", "flip TTA %", "n", "training passes", "passes per image", "parameters")
    return Table("variants", columns, rows).without_empty_columns()


def differences_table(series: Series) -> Table | None:
    """Differences that are not in the paper's tables, and those that the study's file names."""
    named = [("t2-taught", "t2", "pruned"), ("t2-taught", "t2", "full"), ("t2", "alg", "pruned")]
    flips = (False, True) if series.first.uses_flip else (False,)
    # A classifier is a kind of run, its part, and whether it is tested with flip TTA.
    pairs = [((a, part, flip), (b, part, flip)) for a, b, part in named for flip in flips]
    if series.first.uses_flip:  # the same training compute and two passes per image each
        pairs += [((kind, "full", False), ("base-x2", "pruned", True)) for kind in ("t2", "t2-taught")]
    for one in series.compare:
        if {one.a, one.b} <= series.runs.keys() and not {one.a, one.b} <= set(KINDS):  # else the tables have it
            parts, others = (_parts(series.of(kind)[0]) for kind in (one.a, one.b))
            pairs += [
                ((one.a, part, flip), (one.b, part if part in others else "full", flip))
                for part in parts for flip in flips
            ]  # fmt: skip
    rows = []
    for pair in pairs:
        sides = [series.of(kind) for kind, _, _ in pair]
        if all(sides):
            gap = difference(*(accuracies(runs, part, flip) for runs, (_, part, flip) in zip(sides, pair)))
            names = [
                name_of(kind, part, len(runs[0].result.test.heads)) + (", flip TTA" if flip else "")
                for runs, (kind, part, flip) in zip(sides, pair)
            ]
            verdict = cells.plain(cells.verdict(gap) or "–")
            rows.append([*map(cells.plain, names), cells.gap(gap), verdict, *map(cells.plain, gap.n)])
    columns = ("model", "compared with", "difference in points", "model is", "n", "n of the other")
    return Table("differences", columns, rows) if rows else None


def summary_table(series: Series) -> Table | None:
    """What m heads gain over the baseline, and over the baseline at equal training compute, in points."""
    columns = ["model"]
    rows: dict[str, list[Cell]] = {}
    for flip in (True, False) if series.first.uses_flip else (False,):
        test = "flip TTA" if flip else "image alone"
        columns += [f"to baseline, {test}", f"at equal compute, {test}"]
        shown = {row.name: row for key in ("pruned", "full", "taught") for row in rows_of(series, key, flip)}
        for name, row in shown.items():
            if not name.startswith("baseline"):
                rows.setdefault(name, [cells.plain(name)]).extend(
                    Cell(f"{as_text(gap.mean, '+.2f')} {cells.verdict(gap)}".strip(), gap.mean) if gap else EMPTY
                    for gap in (row.to_baseline, row.to_longer)
                )
    return Table("summary", columns, list(rows.values())).without_empty_columns() if rows else None
