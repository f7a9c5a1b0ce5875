"""The style of every figure: one palette, sizes that are legible in print and on a phone, the same file formats."""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transnet.report.table_format import TEXTS, Table
from transnet.study.statistics import mean_and_error

# Okabe and Ito's palette: distinct for colour-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vP*"


@dataclass(frozen=True)
class Figure:
    """A figure of the report, its SVG file, and the tables of its numbers. ``TEXTS`` has its title and caption."""

    key: str
    file: Path
    tables: Sequence[Table]

    @property
    def text(self) -> dict[str, str]:
        """Its title and caption."""
        return TEXTS[self.key]

    @property
    def svg(self) -> str:
        """The drawing, for use inside a page."""
        return inline(self.file.read_text())


def new_figure(panels: int = 1) -> tuple[Any, Any]:
    """A figure of panels below each other, and its axes; narrow enough to be legible on a phone."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure, axes = plt.subplots(panels, 1, figsize=(5.6, 3.5 * panels), layout=ConstrainedLayoutEngine(hspace=0.08))
    for one in [axes] if panels == 1 else axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(axis="y", color="#999999", alpha=0.3, linewidth=0.6)
        one.title.set_size(11)
        one.yaxis.label.set_size(9)
    return figure, axes


def plot_means(
    axes: Any, values: Mapping[int, Sequence[float]], style: int, *, shift: float, label: str, line: str = "-"
) -> None:
    """Plot the mean and standard error of repeated values at each x, in the colour and marker number ``style``."""
    summary = [mean_and_error(repeated) for repeated in values.values()]
    axes.errorbar(
        [x + shift for x in values], [mean for mean, _ in summary], [error or 0 for _, error in summary],
        color=COLOURS[style], marker=MARKERS[style], markersize=5, capsize=3, linewidth=1.5, linestyle=line,
        label=label,
    )  # fmt: skip


def escape(text: str) -> str:
    """A user's own name, escaped: matplotlib reads $ as mathematics and hides labels that begin with _."""
    text = text.encode(errors="replace").decode()  # a folder's name need not be UTF-8
    return ("\u200b" if text.startswith("_") else "") + text.replace("$", r"\$")


def make_logarithmic(axes: Any) -> None:
    """Give the y-axis a logarithmic scale with at least three ticks."""
    from matplotlib.ticker import AutoLocator, LogLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    for locator in (LogLocator(), LogLocator(subs=(1, 2, 5)), AutoLocator()):
        axes.yaxis.set_major_locator(locator)
        if sum(low <= tick <= high for tick in axes.get_yticks()) > 2:
            break
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")


def save_figure(figure: Any, path: Path) -> Path:
    """Write the figure as SVG, PDF and PNG to ``path`` plus ending, close it, and return the SVG.

    Equal figures give equal bytes in SVG and PDF.
    """
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    # Text stays text in the SVG. The salt keeps the ids of several figures on one page apart.
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": None}
    style = plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": path.name, "pdf.fonttype": 42})
    with style, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name in a script that the font does not have
        for ending, metadata in undated.items():
            file = path.with_name(path.name + ending)
            figure.savefig(file, dpi=160, metadata=metadata, transparent=ending == ".svg")
    plt.close(figure)
    return path.with_name(path.name + ".svg")


def inline(svg: str) -> str:
    """A figure's SVG for use inside a page: as wide as its box, and black parts in the page's text colour."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    return svg.replace("#000000", "currentColor")
