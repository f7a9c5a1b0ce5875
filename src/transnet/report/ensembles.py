"""Fig. 3: accuracy against the number of instances that are processed to classify an image.

m baselines, m pruned T2, and one Tm with all its heads each take m passes. Ensembles of one size share no network, so
that the standard error is one of independent values. They are formed within blocks of four seeds (0…3, 4…7, …):
further seeds add ensembles and change none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from transnet.metrics import uncertainty
from transnet.report import table_format as cells
from transnet.report.measurement_cache import MeasurementCache
from transnet.report.paper import BY_HEADS
from transnet.report.plot_style import COLOURS, MARKERS, Figure, label, new_figure, save_figure
from transnet.report.table_format import Cell, Table
from transnet.runs.records import Score
from transnet.study.results import FinishedRun, Series
from transnet.study.statistics import mean_and_error

BLOCK = 4
CURVES = {"base": "base", "PT2": "t2"}  # curves of several networks, and their kind of run
LABELS = {"base": "m baselines", "PT2": "m PT2", "Tm": "one Tm"}


@dataclass(frozen=True, kw_only=True)
class EnsembleScore(Score):
    """The mean of several members' logits; one member has no disagreement. None: not measured."""

    calibration_error: float | None = None
    disagreement: float | None = None
    split_votes: float | None = None
    error_auroc: float | None = None


@dataclass(frozen=True)
class Ensemble:
    """Networks of one kind, or for the curve Tm one network with all its heads; ``size`` members in both cases."""

    curve: str
    size: int
    runs: tuple[FinishedRun, ...]

    @property
    def name(self) -> str:
        """What sets it apart from all others of its series."""
        return f"{self.curve}: {' + '.join(run.name for run in self.runs)}"


@dataclass(frozen=True)
class Point:
    """A point of a curve: all ensembles of one size."""

    curve: str
    size: int
    scores: tuple[EnsembleScore, ...]

    def values(self, name: str) -> list[float]:
        """A measure of those ensembles that have it."""
        return [value for score in self.scores if (value := getattr(score, name)) is not None]


def ensembles_of(series: Series) -> list[Ensemble]:
    """All ensembles of a series, curve by curve, the smallest first."""
    found = []
    for curve, kind in CURVES.items():
        runs = {run.seed: run for run in series.of(kind)}
        for size in range(1, BLOCK + 1):
            for block in range(0, max(runs, default=-1) + 1, BLOCK):
                for start in range(block, block + BLOCK - size + 1, size):
                    members = [runs[seed] for seed in range(start, start + size) if seed in runs]
                    if len(members) == size:
                        found.append(Ensemble(curve, size, tuple(members)))
    return found + [Ensemble("Tm", m, (run,)) for m, kind in enumerate(BY_HEADS, 1) for run in series.of(kind)]


def measure(series: Series, cache: MeasurementCache) -> list[Point]:
    """The curves, from earlier measurements and the runs' saved predictions; empty if nothing was ever measured.

    A single network whose predictions are gone counts with the score in its result.
    """
    measured = [
        (one, cache.get(EnsembleScore, one.name, one.runs, partial(_score, one))) for one in ensembles_of(series)
    ]
    if not any(score for _, score in measured):
        return []
    known = [(one, score or _from_result(one)) for one, score in measured]
    found = [(one, score) for one, score in known if score]
    return [
        Point(curve, size, tuple(score for _, score in of_size))
        for (curve, size), of_size in groupby(found, key=lambda pair: (pair[0].curve, pair[0].size))
    ]


def score_ensemble(members: Sequence[Tensor], labels: Tensor, *, passes: int) -> EnsembleScore:
    """Accuracy, loss, calibration and disagreement of the mean of members' logits, each (N, K)."""
    stacked = torch.stack([member.float() for member in members], 1)
    mean = stacked.mean(1)
    loss = F.cross_entropy(mean, labels, reduction="none").double().mean().item()
    accuracy = (mean.argmax(1) == labels).double().mean().item()
    return EnsembleScore(
        accuracy=accuracy, loss=loss, n=len(labels), passes=passes, **uncertainty(stacked, labels)
    )  # fmt: skip


def _score(one: Ensemble) -> EnsembleScore | None:
    saved = [run.predictions for run in one.runs]
    found = [predictions for predictions in saved if predictions is not None]
    if len(found) < len(saved):
        return None
    members = []
    for each in found:
        heads = range(len(each.heads)) if one.curve == "Tm" else [each.heads.index("r0")]
        scores = torch.from_numpy(each.scores if each.scores_flip is None else each.scores_flip)
        members += [scores[:, i] for i in heads]
    views = 1 if found[0].scores_flip is None else 2
    score = score_ensemble(members, torch.from_numpy(found[0].labels).long(), passes=len(members) * views)
    exact = _from_result(one)  # predictions are in half precision
    return replace(score, accuracy=exact.accuracy, loss=exact.loss) if exact else score


def _from_result(one: Ensemble) -> EnsembleScore | None:
    """The score of a single network in its run's result."""
    if len(one.runs) > 1:
        return None
    score = one.runs[0].score("full" if one.curve == "Tm" else "pruned")
    return EnsembleScore(accuracy=score.accuracy, loss=score.loss, n=score.n, passes=score.passes)


def figures(series: Series, folder: Path, cache: MeasurementCache) -> list[Figure]:
    """Fig. 3, if there is any ensemble of several networks or heads."""
    points = measure(series, cache)
    if all(point.size == 1 for point in points):
        return []
    caption = (
        "An instance is one network or one head that sees the image, and with flip TTA also its horizontal flip. "
        "An ensemble is the mean of the logits. Mean ± standard error over ensembles that share no network; n is "
        "their number for each m."
    )
    return [Figure("Fig. 3: ensembles", caption, draw(points, series, folder), (table(points),))]


def table(points: Sequence[Point]) -> Table:
    """The points of Fig. 3."""
    columns = (
        "ensemble", "instances", "accuracy %", "n", "loss", "calibration error %", "disagreement", "error AUROC",
        "passes per image",
    )  # fmt: skip
    notes = (
        "n counts ensembles that share no network; ± is the standard error over them. A single one has no error. "
        "Ensembles without saved predictions count in n, accuracy and loss only.",
        "Loss: cross-entropy of the mean of the members' logits. Calibration error: 15 bins of the top probability.",
        "Disagreement: mean divergence of the members' probabilities from their mean, in nats. Error AUROC: how well "
        "disagreement separates wrong predictions from right ones, 0.5 by chance.",
    )
    return Table("ensembles", "The points of Fig. 3", columns, tuple(_row(point) for point in points), notes)


def _row(point: Point) -> tuple[Cell, ...]:
    m = point.size
    names = {"base": f"{m} baseline{'s' * (m > 1)}", "PT2": f"{m} PT2"}
    return (
        cells.text(names.get(point.curve, f"one T{m}" if m > 1 else "one baseline, as T1")),
        cells.count(m),
        cells.mean_of([100 * value for value in point.values("accuracy")]),
        cells.count(len(point.scores)),
        cells.mean_of(point.values("loss"), ".4f"),
        cells.mean_of([100 * value for value in point.values("calibration_error")]),
        cells.mean_of(point.values("disagreement"), ".4f"),
        cells.mean_of(point.values("error_auroc"), ".3f"),
        cells.count(point.scores[0].passes),
    )


def draw(points: Sequence[Point], series: Series, folder: Path) -> Path:
    """Draw accuracy against instances."""
    figure, axes = new_figure()
    for i, (curve, name) in enumerate(LABELS.items()):
        shown = [point for point in points if point.curve == curve]
        if not shown:
            continue
        summary = [mean_and_error([100 * value for value in point.values("accuracy")]) for point in shown]
        axes.errorbar(
            [point.size + 0.05 * (i - 1) for point in shown], [mean for mean, _ in summary],
            [error or 0 for _, error in summary], marker=MARKERS[i], color=COLOURS[i], markersize=5, capsize=3,
            linewidth=1.5, label=f"{name}, n = {', '.join(str(len(point.scores)) for point in shown)}",
        )  # fmt: skip
    axes.set(
        xlabel="instances processed for a prediction, m", ylabel="test accuracy %", xticks=[1, 2, 3, 4],
        title=f"Ensembles on {label(series.first.result.config.data.name)}, mean ± standard error",
    )  # fmt: skip
    axes.legend(frameon=False, fontsize=9)
    return save_figure(figure, folder / f"{series.name}-ensembles")
