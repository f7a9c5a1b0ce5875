"""The plot of early exit: accuracy against passes per image."""

from pathlib import Path

from transnet.early_exit import Curve
from transnet.report.plot_style import COLOURS, label, new_figure, save_figure


def draw(points: Curve, out: Path, *, chosen: float | None = None, title: str = "") -> Path:
    """Draw the curve of all thresholds.

    Args:
        points: what `transnet.early_exit.curve` returned.
        out: path of the figure without its ending.
        chosen: a threshold to mark.
        title: above the figure.
    """
    figure, axes = new_figure()
    axes.plot(points.passes, 100 * points.accuracy, color=COLOURS[0], label="early exit")
    axes.axhline(100 * points.full, color="#999999", linestyle="--", linewidth=1, label=f"all {points.heads} heads")
    if chosen is not None:
        at = int((points.confidence - chosen).abs().argmin())
        place = float(points.passes[at]), 100 * float(points.accuracy[at])
        axes.plot(*place, "o", color=COLOURS[1], label=f"confidence {chosen:.3g}: {place[0]:.2f} passes")
    axes.set(xlabel="passes of the backbone per image", ylabel="accuracy %", title=label(title))
    axes.legend(frameon=False)
    return save_figure(figure, out)
