"""Fig. 4: learning curves over training passes, and test loss over train loss against the number of heads."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from transnet.report import plot_style
from transnet.report import table_format as cells
from transnet.report.measurement_cache import MeasurementCache
from transnet.report.paper import BY_HEADS, LONGER, name_of
from transnet.report.plot_style import COLOURS, MARKERS, Figure
from transnet.report.table_format import Table
from transnet.study.results import FinishedRun, Series


def generalization_figures(series: Series, folder: Path, _: MeasurementCache) -> list[Figure]:
    """Fig. 4, if the baseline and T2 were trained."""
    if not (series.of("base") and series.of("t2")):
        return []
    return [Figure("figure_4", draw_generalization(series, folder), [generalization_table(series)])]


def ratios(runs: Sequence[FinishedRun]) -> list[float]:
    """Test loss over train loss of those runs that were scored on both sets: lower is better."""
    return [run.result.generalization for run in runs if run.result.generalization is not None]


def generalization_table(series: Series) -> Table:
    """The losses behind the ratios."""
    rows = []
    for kind in BY_HEADS + LONGER:
        runs = [run for run in series.of(kind) if run.result.generalization is not None]
        test = [run.result.test.pruned.loss for run in runs if run.result.test.pruned]
        train = [run.result.train.loss for run in runs if run.result.train]
        if runs:
            losses = [cells.mean_of([loss for loss in part if loss is not None], ".4f") for part in (test, train)]
            name = cells.text(name_of(kind, "pruned"))
            rows.append((name, cells.mean_of(ratios(runs), ".3f"), cells.seeds(len(runs)), *losses))
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
    plot_style.make_logarithmic(curves)
    curves.legend(frameon=False, fontsize=8)
    for i, (name, kinds) in enumerate((("PTm", BY_HEADS), ("baseline, m× epochs", ("base", *LONGER))), 1):
        points = {m: found for m, kind in enumerate(kinds, 1) if (found := ratios(series.of(kind)))}
        if len(points) > 1:
            plot_style.plot_means(bars, points, i, shift=0.05 * (i - 1.5), label=name, line="-" if i == 1 else ":")
    bars.set(
        xlabel="m, in training", ylabel="test loss / train loss", title="Generalisation score", xticks=[1, 2, 3, 4]
    )
    if bars.get_legend_handles_labels()[0]:
        bars.legend(frameon=False, fontsize=8)
    return plot_style.save_figure(figure, folder / f"{series.name}-generalization")


def _mean_curves(runs: Sequence[FinishedRun]) -> tuple[list[int], list[float], list[float]]:
    """Epochs, and the identity head's mean test and training loss after each.

    Only the runs that were tested after the most epochs count, because a mean over changing runs would jump.
    """
    tested: list[dict[int, tuple[float, float]]] = []
    for run in runs:
        losses = {}
        for entry in run.metrics:
            test = entry.test.pruned.loss if entry.test and entry.test.pruned else None
            if test is not None and entry.loss[0] is not None:
                losses[entry.epoch] = (test, entry.loss[0])
        tested.append(losses)
    epochs = max((sorted(losses) for losses in tested), key=len)
    shown = [losses for losses in tested if sorted(losses) == epochs]
    means = [[statistics.fmean(losses[epoch][i] for losses in shown) for epoch in epochs] for i in (0, 1)]
    return epochs, means[0], means[1]
