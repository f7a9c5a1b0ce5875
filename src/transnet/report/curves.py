"""A run's curves as small SVGs, light enough for a page with a hundred of them."""

from collections.abc import Sequence
from html import escape

from transnet.report.plot_style import COLOURS
from transnet.runs.records import EpochEntry

WIDTH, HEIGHT = 360, 170
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 22, 24
MOST_POINTS = 150

Line = list[tuple[int, float]]


def curves_of(metrics: Sequence[EpochEntry]) -> tuple[str, str]:
    """The identity head's loss and accuracy against the epoch, in training and on the test set, as two SVGs."""
    tested = [(entry.epoch, entry.test.pruned) for entry in metrics if entry.test and entry.test.pruned]
    loss = {
        "training": [(entry.epoch, value) for entry in metrics if (value := entry.loss[0]) is not None],
        "test": [(epoch, score.loss) for epoch, score in tested if score.loss is not None],
    }
    accuracy = {
        "training": [(entry.epoch, 100 * value) for entry in metrics if (value := entry.accuracy[0]) is not None],
        "test": [(epoch, 100 * score.accuracy) for epoch, score in tested],
    }
    return _chart("cross-entropy", loss), _chart("accuracy %", accuracy)


def _chart(title: str, lines: dict[str, Line]) -> str:
    points = [point for line in lines.values() for point in line]
    if not points:
        return ""
    last = max([2, *(x for x, _ in points)])
    low, high = min(y for _, y in points), max(y for _, y in points)
    high = high if high > low else low + 1

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - 1) / (last - 1) * (WIDTH - LEFT - RIGHT)
        return across, TOP + (high - y) / (high - low) * (HEIGHT - TOP - BOTTOM)

    svg = [
        f'<svg class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)} by epoch">',
        f'<text x="{LEFT}" y="13">{escape(title)}</text>',
    ]
    for value in (low, (low + high) / 2, high):
        _, y = place(1, value)
        svg.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        svg.append(f'<text text-anchor="end" x="{LEFT - 5}" y="{y + 4:.1f}">{value:.3g}</text>')
    for epoch, anchor in ((1, "start"), (last, "end")):
        svg.append(f'<text text-anchor="{anchor}" x="{place(epoch, low)[0]:.0f}" y="{HEIGHT - 7}">{epoch}</text>')
    for i, (name, line) in enumerate(lines.items()):
        kept = line[:: max(len(line) // MOST_POINTS, 1)]
        if kept and kept[-1] != line[-1]:
            kept.append(line[-1])
        drawn = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in kept)
        dashed = ' stroke-dasharray="5 3"' if name == "training" else ""
        svg.append(f'<polyline points="{drawn}" fill="none" stroke="{COLOURS[i]}" stroke-width="1.6"{dashed}/>')
        svg.append(
            f'<text text-anchor="end" x="{WIDTH - RIGHT - 64 * (1 - i)}" y="13" style="fill:{COLOURS[i]}">{name}</text>'
        )
    return "".join([*svg, "</svg>"])
