"""Figs. 3 and 4 from finished runs. Figs. 5 and 6 are drawn by `transnet.report.kernels`."""

import statistics
from pathlib import Path
from typing import Any

from transnet.report.plot_style import COLOURS, MARKERS, label, make_logarithmic, new_figure, save
from transnet.study.old_results import FinishedRun, Group
from transnet.study.plan import BY_HEADS, EQUAL, KINDS
from transnet.study.statistics import mean_and_error

CURVES = {"base": "m base", "PT2": "m PT2", "Tm": "one Tm"}


def draw_ensembles(curves: dict[str, list[dict[str, Any]]], group: Group, folder: Path) -> list[Path]:
    """Fig. 3: accuracy against instances, from the curves of `transnet.study.ensembles`."""
    figure, axes = new_figure()
    for i, (curve, points) in enumerate(curves.items()):
        if not points:
            continue
        at = [point["instances"] + 0.05 * (i - 1) for point in points]
        summary = [mean_and_error([100 * entry["accuracy"] for entry in point["ensembles"]]) for point in points]
        axes.errorbar(
            at, [mean for mean, _ in summary], [error or 0 for _, error in summary], marker=MARKERS[i],
            color=COLOURS[i], markersize=5, capsize=3, linewidth=1.5,
            label=f"{CURVES[curve]}, n = {', '.join(str(len(point['ensembles'])) for point in points)}",
        )  # fmt: skip
    several = any(len(point["ensembles"]) > 1 for points in curves.values() for point in points)
    axes.set(
        xlabel="instances processed for a prediction, m", ylabel="test accuracy %", xticks=[1, 2, 3, 4],
        title=f"Ensembles on {label(group.data)}, {'mean ± standard error' if several else 'one of each'}",
    )  # fmt: skip
    axes.legend(frameon=False, fontsize=9)
    return save(figure, folder / f"{group.name}-ensembles")


def draw_generalization(group: Group, folder: Path) -> list[Path]:
    """Fig. 4: learning curves over training passes, and test over train loss against the number of heads."""
    figure, (curves, scores) = new_figure(2)
    for i, kind in enumerate(("base", "t2", "base-x2")):
        runs = group.of(kind)
        if not runs:
            continue
        epochs, test, train = _curves(runs)
        # An epoch of m heads shows every image m times: only over passes do equal places have equal cost.
        passes = [epoch * KINDS[kind].cost / KINDS[kind].epochs for epoch in epochs]
        style = {"color": COLOURS[i], "marker": MARKERS[i], "markevery": (0.03 * i, 0.15), "markersize": 4}
        curves.plot(passes, test, linewidth=1.5, label=f"{KINDS[kind].pruned}, test", **style)
        curves.plot(passes, train, linewidth=1.2, linestyle="--", label=f"{KINDS[kind].pruned}, training", **style)
    curves.set(
        xlabel="training passes of each image: one an epoch of base, two of PT2", ylabel="cross-entropy",
        title=f"Learning curves, {label(group.data)}",
    )  # fmt: skip
    make_logarithmic(curves)
    curves.legend(frameon=False, fontsize=8)
    for i, (title, kinds) in enumerate((("PTm", BY_HEADS), ("base, m× epochs", ("base", *EQUAL))), 1):
        points = {KINDS[kind].cost: ratios for kind in kinds if (ratios := ratios_of(group.of(kind)))}
        if len(points) < 2:
            continue
        summary = [mean_and_error(ratios) for ratios in points.values()]
        scores.errorbar(
            [m + 0.05 * (i - 1.5) for m in points], [mean for mean, _ in summary], [e or 0 for _, e in summary],
            marker=MARKERS[i], color=COLOURS[i], markersize=5, capsize=3, linewidth=1.5, label=title,
            linestyle="-" if i == 1 else ":",
        )  # fmt: skip
    scores.set(
        xlabel="m, in training", ylabel="test loss / train loss", title="Generalisation score", xticks=[1, 2, 3, 4]
    )
    if scores.get_legend_handles_labels()[0]:
        scores.legend(frameon=False, fontsize=8)
    return save(figure, folder / f"{group.name}-generalization")


def ratios_of(runs: list[FinishedRun]) -> list[float]:
    """The generalisation scores of runs: lower is better."""
    return [run.result["generalization"] for run in runs if run.result["generalization"] is not None]


def _curves(runs: list[FinishedRun]) -> tuple[list[int], list[float], list[float]]:
    """Epochs, and the identity head's losses on the test set and, while training, the training set: means of runs.

    Runs may have been tested after every epoch or only after some. Those with the most epochs count: a mean over
    other runs from one epoch to the next would jump.
    """
    tested = [
        {
            entry["epoch"]: (entry["test"]["pruned"]["loss"], entry["loss"][0])
            for entry in run.metrics
            if entry.get("test") and entry["test"]["pruned"]["loss"] is not None
        }
        for run in runs
    ]
    epochs = max((sorted(losses) for losses in tested), key=len)
    shown = [losses for losses in tested if sorted(losses) == epochs]
    test, train = ([statistics.fmean(losses[e][i] for losses in shown) for e in epochs] for i in (0, 1))
    return epochs, test, train
