"""A run's curves as a small SVG of lines, light enough for a page with a hundred of them."""

from collections.abc import Sequence
from html import escape
from typing import Any

from transnet.report.plot_style import COLOURS

WIDTH, HEIGHT = 360, 170
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 22, 24
MOST = 150  # points a line


def curves_of(metrics: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """The identity head's loss and accuracy against the epoch, while training and on the test set, as two SVGs."""
    tested = [entry for entry in metrics if entry.get("test") and entry["test"]["pruned"]]
    charts = []
    for title, factor in (("loss", 1), ("accuracy", 100)):
        lines = {
            "training": [(entry["epoch"], entry[title][0]) for entry in metrics],
            "test": [(entry["epoch"], entry["test"]["pruned"][title]) for entry in tested],
        }
        # None: the outputs were not finite after that epoch.
        lines = {name: [(x, factor * y) for x, y in line if y is not None] for name, line in lines.items()}
        charts.append(_chart("cross-entropy" if title == "loss" else "accuracy %", lines))
    return charts[0], charts[1]


def _chart(title: str, lines: dict[str, list[tuple[int, float]]]) -> str:
    points = [point for line in lines.values() for point in line]
    if not points:
        return ""
    last = max([2, *(x for x, _ in points)])
    low, high = min(y for _, y in points), max(y for _, y in points)
    high = high if high > low else low + 1

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - 1) / (last - 1) * (WIDTH - LEFT - RIGHT)
        return across, TOP + (high - y) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)} by epoch">',
        f'<text x="{LEFT}" y="13">{escape(title)}</text>',
    ]
    for value in (low, (low + high) / 2, high):
        _, y = place(1, value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text text-anchor="end" x="{LEFT - 5}" y="{y + 4:.1f}">{value:.3g}</text>')
    for epoch, anchor in ((1, "start"), (last, "end")):
        parts.append(f'<text text-anchor="{anchor}" x="{place(epoch, low)[0]:.0f}" y="{HEIGHT - 7}">{epoch}</text>')
    for i, (name, line) in enumerate(lines.items()):
        kept = line[:: max(len(line) // MOST, 1)]
        if kept and kept[-1] != line[-1]:
            kept.append(line[-1])
        drawn = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in kept)
        dashed = ' stroke-dasharray="5 3"' if name == "training" else ""
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{COLOURS[i]}" stroke-width="1.6"{dashed}/>')
        parts.append(
            f'<text text-anchor="end" x="{WIDTH - RIGHT - 64 * (1 - i)}" y="13" style="fill:{COLOURS[i]}">{name}</text>'
        )
    return "".join([*parts, "</svg>"])
