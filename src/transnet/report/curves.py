"""Curves of a single run: of its training, as small charts for the page, and of early exit, as a figure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transnet.early_exit import Curve
from transnet.report import plot_style
from transnet.report.plot_style import COLOURS
from transnet.runs.records import EpochEntry

LEFT, RIGHT, TOP, BOTTOM = 46, 350, 22, 146  # edges of a chart in its SVG of 360×170
MOST_POINTS = 150

Line = list[tuple[int, float]]


@dataclass(frozen=True)
class Chart:
    """What the page's template draws: y and text of each tick, the last epoch; name, colour and points of each line."""

    title: str
    ticks: list[tuple[float, str]]
    last: int
    lines: list[tuple[str, str, str]]


def charts_of(metrics: Sequence[EpochEntry]) -> list[Chart]:
    """The identity head's loss and accuracy against the epoch, in training and on the test set."""
    tested = [(entry.epoch, entry.test.pruned) for entry in metrics if entry.test and entry.test.pruned]
    loss = {
        "training": [(entry.epoch, value) for entry in metrics if (value := entry.loss[0]) is not None],
        "test": [(epoch, score.loss) for epoch, score in tested if score.loss is not None],
    }
    accuracy = {
        "training": [(entry.epoch, 100 * value) for entry in metrics if (value := entry.accuracy[0]) is not None],
        "test": [(epoch, 100 * score.accuracy) for epoch, score in tested],
    }
    return [
        _chart(title, lines)
        for title, lines in (("cross-entropy", loss), ("accuracy %", accuracy))
        if any(lines.values())
    ]


def _chart(title: str, lines: dict[str, Line]) -> Chart:
    points = [point for line in lines.values() for point in line]
    last = max([2, *(x for x, _ in points)])
    low, high = min(y for _, y in points), max(y for _, y in points)
    high = high if high > low else low + 1

    def height(y: float) -> float:
        return TOP + (high - y) / (high - low) * (BOTTOM - TOP)

    drawn = []
    for (name, line), colour in zip(lines.items(), COLOURS):
        shown = [*line[:: max(len(line) // MOST_POINTS, 1)], *line[-1:]]
        places = ((LEFT + (x - 1) / (last - 1) * (RIGHT - LEFT), height(y)) for x, y in dict(shown).items())
        drawn.append((name, colour, " ".join(f"{x:.1f},{y:.1f}" for x, y in places)))
    return Chart(title, [(height(y), f"{y:.3g}") for y in (low, (low + high) / 2, high)], last, drawn)


def draw_early_exit(points: Curve, out: Path, *, chosen: float | None = None, title: str = "") -> Path:
    """Draw the curve of all thresholds to ``out`` plus ending, with a mark at the threshold ``chosen``."""
    figure, axes = plot_style.new_figure()
    axes.plot(points.passes, 100 * points.accuracy, color=COLOURS[0], label="early exit")
    axes.axhline(100 * points.full, color="#999999", linestyle="--", linewidth=1, label=f"all {points.heads} heads")
    if chosen is not None:
        at = int((points.confidence - chosen).abs().argmin())
        place = float(points.passes[at]), 100 * float(points.accuracy[at])
        axes.plot(*place, "o", color=COLOURS[1], label=f"confidence {chosen:.3g}: {place[0]:.2f} passes")
    axes.set(xlabel="passes of the backbone per image", ylabel="accuracy %", title=plot_style.escape(title))
    axes.legend(frameon=False)
    return plot_style.save_figure(figure, out)
