"""What a study's runs say about a row of a table, a point of a figure or a statement of the paper."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from studies import Study
from transnet.report.ensembles import Points, measure_ensembles
from transnet.report.kernels import MeasuredKernels
from transnet.report.measurement_cache import MeasurementCache
from transnet.report.tables import accuracies, name_of, published
from transnet.study.statistics import as_text, difference, mean_and_error


@dataclass(frozen=True)
class Finding:
    """What the runs of one series give for a part."""

    holds: bool
    ours: str
    n: int  # runs on the side that has fewer; 0: none


Check = Callable[[Study], Finding]


def table_row(kind: str, part: str, data: str) -> Check:
    """Whether a classifier's difference to the baseline is the paper's."""
    theirs = published_gain(name_of(kind, part), data)

    def check(study: Study) -> Finding:
        sides = [accuracies(study.series.of(one), part) for one in (kind, "base")]
        if not all(sides):
            return Finding(False, "–", 0)
        (mean, error), (base, base_error) = (mean_and_error(side) for side in sides)
        ours, spread = mean - base, math.hypot(error or 0, base_error or 0)
        return Finding(
            abs(ours - theirs[0]) <= 2 * math.hypot(spread, theirs[1]),
            f"{as_text(ours, '+.2f')}" + (f" ± {spread:.2f}" if error is not None else ""), min(map(len, sides)),
        )  # fmt: skip

    return check


def published_gain(name: str, data: str) -> tuple[float, float]:
    """The paper's difference to the baseline and its standard error."""
    one, base = published(name, data), published("baseline", data)
    assert one is not None, f"{name} of {data} is not in texts.toml"
    assert base is not None
    return one[0] - base[0], math.hypot(one[1], base[1])


def gain(a: str, b: str, part: str = "pruned", *, expected: str = "above") -> Check:
    """Whether kind ``a`` is ``above`` ``b``, ``below`` it, or ``not above`` it."""
    return _compare(lambda study, kind: accuracies(study.series.of(kind), part), a, b, expected)


def _compare(
    values: Callable[[Study, str], Sequence[float]], a: str, b: str, expected: str, form: str = "+.2f"
) -> Check:
    def check(study: Study) -> Finding:
        sides = [values(study, kind) for kind in (a, b)]
        if not all(sides):
            return Finding(False, "–", 0)
        gap = difference(*sides)
        above, below = gap.certain and gap.mean > 0, gap.certain and gap.mean < 0
        shown = as_text(gap.mean, form)
        if gap.low is not None and gap.high is not None:
            shown += f" [{as_text(gap.low, form)}, {as_text(gap.high, form)}]"
        holds = {"above": above, "below": below, "not above": not above, "not below": not below}[expected]
        return Finding(holds, shown, min(gap.n))

    return check


def ratio_falls(kind: str, fewer: str) -> Check:
    """Whether test loss over training loss is lower with one more head."""

    def ratios(study: Study, kind: str) -> Sequence[float]:
        return [value for run in study.series.of(kind) if (value := run.result.generalization) is not None]

    return _compare(ratios, kind, fewer, "below")


def loss_moves(split: str, expected: str) -> Check:
    """Whether the identity head's loss of T2 on ``test`` or ``train`` is above or below the baseline's."""

    def losses(study: Study, kind: str) -> Sequence[float]:
        results = [run.result for run in study.series.of(kind)]
        found = [one.test.pruned if split == "test" else one.train for one in results]
        return [score.loss for score in found if score and score.loss is not None]

    return _compare(losses, "t2", "base", expected, "+.4f")


def ensembles(curve: str, m: int, expected: str) -> Check:
    """Whether ``curve`` at m instances is above, or not below, m baselines."""

    def values(study: Study, curve: str) -> Sequence[float]:
        points: Points = measure_ensembles(study.series, MeasurementCache(study.folder, study.series.name))
        return [100 * score.accuracy for score in points.get((curve, m), [])]

    return _compare(values, curve, "base", expected)


def kernels_of(study: Study, kind: str) -> list[MeasuredKernels]:
    """The measured kernels of a kind's runs."""
    cache = MeasurementCache(study.folder, study.series.name)
    found = [cache.get(MeasuredKernels, f"kernels: {run.name}", [run], lambda: None) for run in study.series.of(kind)]
    return [one for one in found if one and one.layers]


def last_layer(kind: str, fewer: str, measure: str, expected: str) -> Check:
    """Whether the last layer's mean of ``kind`` by a measure is above or below that of ``fewer``."""
    return _compare(
        lambda study, one: [run.last_layer[measure] for run in kernels_of(study, one)], kind, fewer, expected, "+.4f"
    )


def last_layer_alone(study: Study) -> Finding:
    """Whether T2 changes the last layer at least twice as much as any other."""
    sides = [kernels_of(study, kind) for kind in ("t2", "base")]
    if not all(sides):
        return Finding(False, "–", 0)
    ours, base = (
        {layer: statistics.fmean(run.layers[layer].mean for run in side) for layer in side[0].layers} for side in sides
    )
    change = {layer: 100 * (ours[layer] / base[layer] - 1) for layer in ours}
    last = list(change)[-1]
    most = max((layer for layer in change if layer != last), key=lambda layer: abs(change[layer]))
    shown = "; ".join(f"{layer} {as_text(change[layer], '+.1f')} %" for layer in (last, most))
    return Finding(abs(change[last]) >= 2 * abs(change[most]), shown, min(map(len, sides)))
