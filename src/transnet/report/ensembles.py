"""Fig. 3: accuracy against the number of instances that are processed to classify an image.

m baselines, m pruned T2, and one Tm with all its heads each take m passes. Several full networks, Tm × k, are in the
table beside as many baselines as they take training passes. Ensembles of one size share no network, so
that the standard error is one of independent values. They are formed within blocks of four seeds (0…3, 4…7, …):
further seeds add ensembles and change none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from transnet.report import plot_style
from transnet.report import table_format as cells
from transnet.report.measurement_cache import MeasurementCache
from transnet.report.plot_style import Figure
from transnet.report.table_format import Table
from transnet.report.tables import BY_HEADS, LONGER, name_of
from transnet.runs.records import Score
from transnet.study.results import FinishedRun, Series
from transnet.train.evaluate import ensemble_score

BLOCK = 4


class Curve(NamedTuple):
    """Ensembles of one kind of network: instances per member, and its training passes in those of a baseline."""

    kind: str
    part: str
    instances: int = 1
    training: int = 1
    smallest: int = 2


# A single full network is the curve Tm.
CURVES = {
    "base": Curve("base", "pruned", smallest=1),
    "PT2": Curve("t2", "pruned", training=2, smallest=1),
    **{name_of(kind, "full"): Curve(kind, "full", m, m) for m, kind in enumerate(BY_HEADS[1:], 2)},
    **{kind: Curve(kind, "pruned", training=m) for m, kind in enumerate(LONGER, 2)},
}


@dataclass(frozen=True, kw_only=True)
class EnsembleScore(Score):
    """The mean of several members' logits; one member has no disagreement. None: not measured."""

    calibration_error: float | None = None
    disagreement: float | None = None
    split_votes: float | None = None
    error_auroc: float | None = None


Points = dict[tuple[str, int], list[EnsembleScore]]  # by curve (Tm or one of `CURVES`) and instances


def ensemble_figures(series: Series, folder: Path, cache: MeasurementCache) -> list[Figure]:
    """Fig. 3, if there is any ensemble of several networks or heads, and predictions were ever measured."""
    points = measure_ensembles(series, cache)
    measured = any(score.calibration_error is not None for scores in points.values() for score in scores)
    if not measured or all(size == 1 for _, size in points):
        return []
    return [Figure("figure_3", draw_ensembles(points, series, folder), [_table(points, series)])]


def measure_ensembles(series: Series, cache: MeasurementCache) -> Points:
    """The curves, from earlier measurements, saved predictions and the results of single networks."""
    points: Points = {}
    for curve, size, runs in _ensembles_of(series):
        name = f"{curve}: {' + '.join(run.name for run in runs)}"
        part = "full" if curve == "Tm" else CURVES[curve].part
        score = cache.get(EnsembleScore, name, runs, partial(_score, part, runs))
        if score is None and len(runs) == 1:
            score = _ensemble_score(runs[0].score(part))
        if score:
            points.setdefault((curve, size), []).append(score)
    return points


def _ensembles_of(series: Series) -> Iterator[tuple[str, int, list[FinishedRun]]]:
    """Curve, instances and networks of each ensemble, curve by curve, the smallest first."""
    single = [("Tm", m, [run]) for m, kind in enumerate(BY_HEADS, 1) for run in series.of(kind)]
    for name, curve in CURVES.items():
        if name == "T2":  # after the paper's curves
            yield from single
        for members in _members(series.of(curve.kind), curve.smallest):
            yield name, curve.instances * len(members), members


def _members(given: Sequence[FinishedRun], smallest: int) -> Iterator[list[FinishedRun]]:
    """The runs of each ensemble of at least ``smallest`` networks."""
    runs = {run.seed: run for run in given}
    for size in range(smallest, BLOCK + 1):
        for block in range(0, max(runs, default=-1) + 1, BLOCK):
            for start in range(block, block + BLOCK - size + 1, size):
                members = [runs[seed] for seed in range(start, start + size) if seed in runs]
                if len(members) == size:
                    yield members


def _score(part: str, runs: Sequence[FinishedRun]) -> EnsembleScore | None:
    """Score saved predictions, if all networks have them."""
    predictions = [saved for run in runs if (saved := run.predictions)]
    if len(predictions) < len(runs):
        return None
    members: list[Tensor] = []
    for one in predictions:
        logits = torch.from_numpy(one.scores if one.scores_flip is None else one.scores_flip).float()
        members += logits.unbind(1) if part == "full" else [logits[:, one.heads.index("r0")]]
    passes = sum(run.score(part).passes for run in runs)
    score = ensemble_score(members, torch.from_numpy(predictions[0].labels).long(), passes=passes)
    exact = runs[0].score(part) if len(runs) == 1 else score  # predictions are in half precision
    return _ensemble_score(replace(exact, uncertainty=score.uncertainty))


def _ensemble_score(score: Score) -> EnsembleScore:
    more = vars(score.uncertainty) if score.uncertainty else {}
    return EnsembleScore(accuracy=score.accuracy, loss=score.loss, n=score.n, passes=score.passes, **more)


def _values(scores: Sequence[EnsembleScore], name: str, factor: int = 1) -> list[float]:
    """A measure of those ensembles that have it, times ``factor``."""
    return [factor * value for score in scores if (value := getattr(score, name)) is not None]


def _table(points: Points, series: Series) -> Table:
    rows = []
    for (name, m), scores in points.items():
        shown, training = f"one T{m}" if m > 1 else "one baseline, as T1", m
        if curve := CURVES.get(name):
            k = m // curve.instances
            shown = f"{k} {name_of(curve.kind, curve.part)}{'s' * (name == 'base' and k > 1)}"
            training = k * curve.training
        rows.append([
            cells.plain(shown), cells.plain(m), cells.plain(training),
            cells.mean_of(_values(scores, "accuracy", 100)), cells.plain(len(scores)),
            cells.mean_of(_values(scores, "loss"), ".4f"), cells.mean_of(_values(scores, "calibration_error", 100)),
            cells.mean_of(_values(scores, "disagreement"), ".4f"),
            cells.mean_of(_values(scores, "error_auroc"), ".3f"), cells.plain(scores[0].passes),
        ])  # fmt: skip
    columns = (
        "ensemble", "instances", "training", "accuracy %", "n", "loss", "calibration error %", "disagreement",
        "error AUROC", "passes per image",
    )  # fmt: skip
    absent = [
        f"2 {name_of(curve.kind, curve.part)}" for name, curve in CURVES.items()
        if len(series.of(curve.kind)) > 1 and not any(of == name and m > curve.instances for of, m in points)
    ]  # fmt: skip
    note = f"Left out, because no two runs of a block have predictions: {'; '.join(absent)}." if absent else ""
    return Table("ensembles", columns, rows, {"missing": note})


def draw_ensembles(points: Points, series: Series, folder: Path) -> Path:
    """Draw accuracy against instances."""
    figure, axes = plot_style.new_figure()
    curves = {"base": "m baselines", "PT2": "m PT2", "Tm": "one Tm", "T2": "m / 2 T2"}
    for i, (curve, name) in enumerate(curves.items()):
        accuracies = {m: _values(scores, "accuracy", 100) for (of, m), scores in points.items() if of == curve}
        if accuracies:
            n = ", ".join(str(len(values)) for values in accuracies.values())
            plot_style.plot_means(axes, accuracies, i, shift=0.05 * (i - 1), label=f"{name}, n = {n}")
    axes.set(
        xlabel="instances processed for a prediction, m", ylabel="test accuracy %",
        xticks=sorted({m for curve, m in points if curve in curves} | {1, 2, 3, 4}),
        title=f"Ensembles on {plot_style.escape(series.data)}, mean ± standard error",
    )  # fmt: skip
    axes.legend(frameon=False, fontsize=9)
    return plot_style.save_figure(figure, folder / f"{series.name}-ensembles")
