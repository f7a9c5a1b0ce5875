"""Draws docs/figures/folding.svg: where a strided layer's windows lie, and where the plain rule puts them.

    python docs/figures/folding.py

The positions are those of the library's own rule, not drawn by hand.
"""

from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from transnet.folding.windows import Axis

GREY, BLUE, RED = "#d9d9d9", "#2b6cb0", "#c53030"


def starts(axis: Axis) -> list[int]:
    """The first pixel of every window, in the input's coordinates."""
    return [i * axis.stride - axis.start for i in range(axis.out)]


def draw(ax: Axes, axis: Axis, windows: list[int], right: set[int], title: str) -> None:
    """The row of pixels, its padding, and the windows under it."""
    for i in range(-1, axis.size + 1):
        inside = 0 <= i < axis.size
        ax.add_patch(
            Rectangle((i, 0), 1, 1, facecolor=GREY if inside else "white", edgecolor="grey", ls="-" if inside else ":")
        )
        ax.text(
            i + 0.5,
            0.5,
            str(i) if inside else "0",
            ha="center",
            va="center",
            size=8,
            color="black" if inside else "grey",
        )
    for row, start in enumerate(windows):
        colour = BLUE if start in right else RED
        y = -0.45 - 0.4 * (row % 2)
        ax.plot([start + 0.08, start + axis.extent - 0.08], [y, y], color=colour, lw=4, solid_capstyle="butt")
    ax.set(xlim=(-1.2, 10.2), ylim=(-1.2, 1.15))
    ax.set_title(title, size=9, loc="left")
    ax.axis("off")


def main() -> None:
    """Draw even and odd sizes side by side."""
    mpl.rcParams["svg.hashsalt"] = "folding"
    mpl.rcParams["svg.fonttype"] = "none"
    figure, axes = plt.subplots(3, 2, figsize=(9.5, 4.6), layout="constrained")
    for column, size in enumerate((8, 9)):
        plain = Axis(size=size, kernel=3, stride=2, dilation=1, start=1, end=1, out=(size + 2 - 3) // 2 + 1)
        moved = plain.reversed()
        true = sorted(size - start - plain.extent for start in starts(plain))
        slack = f"{size} pixels, kernel 3, stride 2, pads (1, 1): r = {plain.slack}"
        draw(
            axes[0, column],
            plain,
            true,
            set(true),
            f"{slack}\nthe layer on the mirrored row, in the row's own coordinates",
        )
        draw(axes[1, column], plain, starts(plain), set(true), "plain rule: mirror the kernel only")
        rule = f"exact rule: also move the windows, pads (1, 1) ↦ ({moved.start}, {moved.end})"
        draw(axes[2, column], moved, starts(moved), set(true), rule)
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
