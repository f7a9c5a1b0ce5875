"""Curves: the paper's Fig. 4, the training of a single run as small charts, and early exit."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from matplotlib.ticker import AutoLocator, LogLocator, NullLocator

from transnet.early_exit import Curve
from transnet.report import plot_style
from transnet.report import table_format as cells
from transnet.report.measurement_cache import MeasurementCache
from transnet.report.plot_style import COLOURS, MARKERS, Figure
from transnet.report.table_format import Table
from transnet.report.tables import BY_HEADS, LONGER, name_of
from transnet.runs.records import EpochEntry
from transnet.study.results import FinishedRun, Series

Lines = dict[str, dict[int, float]]  # by name and epoch


def generalization_figures(series: Series, folder: Path, _: MeasurementCache) -> list[Figure]:
    """Fig. 4, if the baseline and T2 were trained."""
    if not (series.of("base") and series.of("t2")):
        return []
    return [Figure("figure_4", draw_generalization(series, folder), [_table(series)])]


def _ratios(runs: Sequence[FinishedRun]) -> list[float]:
    return [run.result.generalization for run in runs if run.result.generalization is not None]


def _table(series: Series) -> Table:
    rows = []
    for kind in BY_HEADS + LONGER:
        if ratios := _ratios(series.of(kind)):
            results = [run.result for run in series.of(kind) if run.result.generalization is not None]
            test = [one.test.pruned.loss for one in results if one.test.pruned and one.test.pruned.loss is not None]
            train = [one.train.loss for one in results if one.train and one.train.loss is not None]
            rows.append([
                cells.plain(name_of(kind, "pruned")), cells.mean_of(ratios, ".3f"), cells.seeds(len(ratios)),
                cells.mean_of(test, ".4f"), cells.mean_of(train, ".4f"),
            ])  # fmt: skip
    columns = ("model", "test loss / train loss", "n", "test loss", "train loss")
    return Table("generalization", columns, rows)


def draw_generalization(series: Series, folder: Path) -> Path:
    """Draw the learning curves, and the ratios below them."""
    figure, (curves, bars) = plot_style.new_figure(2)
    for i, kind in enumerate(("base", "t2", "base-x2")):
        if runs := series.of(kind):
            epochs, test, train = _mean_curves(runs)
            # An epoch of m heads shows every image m times, so that curves are comparable only over passes.
            passes = [epoch * len(runs[0].result.test.heads) for epoch in epochs]
            style = {"color": COLOURS[i], "marker": MARKERS[i], "markevery": (0.03 * i, 0.15), "markersize": 4}
            name = name_of(kind, "pruned")
            curves.plot(passes, test, linewidth=1.5, label=f"{name}, test", **style)
            curves.plot(passes, train, linewidth=1.2, linestyle="--", label=f"{name}, training", **style)
    curves.set(
        xlabel="training passes per image: one per epoch for the baseline, two for PT2", ylabel="cross-entropy",
        title=f"Learning curves, {plot_style.escape(series.data)}",
    )  # fmt: skip
    curves.set_yscale("log")
    low, high = curves.get_ylim()
    curves.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if high > 10 * low else AutoLocator())
    curves.yaxis.set_major_formatter("{x:g}")
    curves.yaxis.set_minor_locator(NullLocator())
    curves.legend(frameon=False, fontsize=8)
    for i, (name, kinds) in enumerate((("PTm", BY_HEADS), ("baseline, m× epochs", ("base", *LONGER))), 1):
        points = {m: ratios for m, kind in enumerate(kinds, 1) if (ratios := _ratios(series.of(kind)))}
        if len(points) > 1:
            plot_style.plot_means(bars, points, i, shift=0.05 * (i - 1.5), label=name, line="-" if i == 1 else ":")
            bars.legend(frameon=False, fontsize=8)
    bars.set(
        xlabel="m, in training", ylabel="test loss / train loss", title="Generalisation score", xticks=[1, 2, 3, 4]
    )
    return plot_style.save_figure(figure, folder / f"{series.name}-generalization")


def _mean_curves(runs: Sequence[FinishedRun]) -> tuple[list[int], list[float], list[float]]:
    """Epochs, and the identity head's mean test and training loss after each."""
    losses = [charts_of(run.metrics)["cross-entropy"] for run in runs]
    tested = [[epoch for epoch in one["test"] if epoch in one["training"]] for one in losses]
    epochs = max(tested, key=len)  # runs that were tested less often are left out: a mean without them would jump
    shown = [one for one, own in zip(losses, tested) if own == epochs]
    test, training = (
        [statistics.fmean(one[part][epoch] for one in shown) for epoch in epochs] for part in ("test", "training")
    )
    return epochs, test, training


def charts_of(metrics: Sequence[EpochEntry]) -> dict[str, Lines]:
    """The identity head's loss and accuracy by epoch, in training and on the test set."""
    tested = [(entry.epoch, entry.test.pruned) for entry in metrics if entry.test and entry.test.pruned]
    loss = {
        "training": {entry.epoch: value for entry in metrics if (value := entry.loss[0]) is not None},
        "test": {epoch: score.loss for epoch, score in tested if score.loss is not None},
    }
    accuracy = {
        "training": {entry.epoch: 100 * value for entry in metrics if (value := entry.accuracy[0]) is not None},
        "test": {epoch: 100 * score.accuracy for epoch, score in tested},
    }
    return {"cross-entropy": loss, "accuracy %": accuracy}


def draw_early_exit(points: Curve, out: Path, *, title: str = "") -> Path:
    """Draw accuracy against passes for all thresholds."""
    figure, axes = plot_style.new_figure()
    axes.plot(points.passes, 100 * points.accuracy, color=COLOURS[0], label="early exit")
    axes.axhline(100 * points.full, color="#999999", linestyle="--", linewidth=1, label=f"all {points.heads} heads")
    axes.set(xlabel="passes of the backbone per image", ylabel="accuracy %", title=plot_style.escape(title))
    axes.legend(frameon=False)
    return plot_style.save_figure(figure, out)
