"""The style of every figure: one palette, sizes that are legible in print and on a phone, the same file formats."""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import figure as mpl
from matplotlib import rc_context
from matplotlib.layout_engine import ConstrainedLayoutEngine

from transnet.report.table_format import Table
from transnet.study.statistics import mean_and_error

# Okabe and Ito's palette: distinct for colour-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vP*"


@dataclass(frozen=True)
class Figure:
    """A figure's SVG file and the tables of its numbers. The page has its title and caption, by ``key``."""

    key: str
    file: Path
    tables: Sequence[Table]

    @property
    def svg(self) -> str:
        """The drawing for use inside a page: as wide as its box, black parts in the colour of the page's text."""
        svg = self.file.read_text()
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
        return re.sub(r' (?:width|height)="[^"]*"', "", svg, count=2).replace("#000000", "currentColor")


def new_figure(panels: int = 1) -> tuple[Any, Any]:
    """A figure of panels below each other, and its axes; narrow enough to be legible on a phone."""
    figure = mpl.Figure(figsize=(5.6, 3.5 * panels), layout=ConstrainedLayoutEngine(hspace=0.08))
    axes = figure.subplots(panels, 1)
    for one in figure.axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(axis="y", color="#999999", alpha=0.3, linewidth=0.6)
        one.title.set_fontsize(11)
        one.yaxis.label.set_fontsize(9)
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


def save_figure(figure: Any, path: Path) -> Path:
    """Write the figure to ``path`` plus .svg, .pdf and .png, and return the SVG. Equal figures give equal files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Text stays text in the SVG. The salt keeps the ids of several figures on one page apart.
    style = rc_context({"svg.fonttype": "none", "svg.hashsalt": path.name, "pdf.fonttype": 42})
    with style, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name in a script that the font does not have
        for ending, date in {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": None}.items():
            figure.savefig(f"{path}.{ending}", dpi=160, metadata=date, transparent=ending == "svg")
    return Path(f"{path}.svg")
