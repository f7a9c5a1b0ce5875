"""Heads one by one: accuracy of every head alone, and of the mean of every subset of heads (section 3.4, footnote 5).

Single heads and all heads are in every run's result. Other subsets need the runs' predictions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np

from transnet.report import table_format as cells
from transnet.report.measurement_cache import MeasurementCache
from transnet.report.table_format import EMPTY, Table
from transnet.report.tables import BY_HEADS, name_of
from transnet.study.results import FinishedRun, Series
from transnet.study.statistics import difference


@dataclass(frozen=True)
class SubsetAccuracy:
    """The mean of some heads' logits on the test images, in percent."""

    alone: float
    flip: float | None  # with flip TTA


def heads_table(series: Series, cache: MeasurementCache) -> Table | None:
    """Every subset of the heads of T2, T3 and T4, or None without any of them."""
    rows, missing = [], []
    for kind in BY_HEADS[1:]:
        runs = series.of(kind)
        for heads in _subsets(runs[0].settings.names if runs else ()):
            measured = [(run, found) for run in runs if (found := _measure(run, heads, cache))]
            if not measured:
                missing.append(f"{name_of(kind, 'full')} {' '.join(heads)}")
                continue
            firsts = [first for run, _ in measured if (first := _measure(run, ("r0",), cache))]
            sides = [([one.alone for one in side], [one.flip for one in side if one.flip is not None])
                     for side in ([found for _, found in measured], firsts)]  # fmt: skip
            gaps = [
                cells.gap(difference(ours, others)) if heads != ("r0",) and ours and others else EMPTY
                for ours, others in zip(*sides, strict=True)
            ]
            rows.append([
                cells.plain(name_of(kind, "full")), cells.plain(" ".join(heads)), *map(cells.mean_of, sides[0]),
                cells.seeds(len(measured)), *gaps, cells.plain(len(heads)),
            ])  # fmt: skip
    if not rows:
        return None
    columns = ("model", "heads", "accuracy %", "flip TTA %", "n", "to r0", "flip TTA, to r0", "passes per image")
    absent = f"Subsets whose runs have no predictions: {', '.join(missing)}." if missing else ""
    return Table("heads", columns, rows, {"missing": absent}).without_empty_columns()


def _subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for size in range(1, len(names) + 1):
        yield from combinations(names, size)


def _measure(run: FinishedRun, heads: tuple[str, ...], cache: MeasurementCache) -> SubsetAccuracy | None:
    """The accuracy of a subset of a run's heads, from its result if that has it."""
    tests = [run.result.test, *([run.result.test_flip] if run.result.test_flip else [])]
    if len(heads) == 1:
        found = [next(one.accuracy for one in test.heads if one.name == heads[0]) for test in tests]
    elif len(heads) == len(run.settings.names):
        found = [test.full.accuracy for test in tests]
    else:
        name = f"heads {' '.join(heads)}: {run.name}"
        return cache.get(SubsetAccuracy, name, [run], partial(_from_predictions, run, heads))
    return SubsetAccuracy(100 * found[0], 100 * found[1] if len(found) > 1 else None)


def _from_predictions(run: FinishedRun, heads: tuple[str, ...]) -> SubsetAccuracy | None:
    if not (saved := run.predictions):
        return None
    chosen = [saved.heads.index(name) for name in heads]

    def accuracy(scores: np.ndarray) -> float:
        return 100 * float((scores[:, chosen].mean(1, np.float32).argmax(1) == saved.labels).mean())

    return SubsetAccuracy(accuracy(saved.scores), None if saved.scores_flip is None else accuracy(saved.scores_flip))
