"""``transnet invariance``."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Annotated, Literal

from transnet.arguments import argument
from transnet.cli.options import Runs, make_folder, parse
from transnet.console import say
from transnet.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Options:
    """Measure how far the kernels of finished runs are from invariant ones: a table, and the paper's Figs. 5 and 6.

    Higher is less invariant for l2 and relative, more invariant for cosine and pearson. 1×1 kernels are left out.

    Example: transnet invariance runs/base runs/t2 runs/t3 --out figures
    """

    runs: Runs
    group: str = "r0,r1,r2,r3"
    """Transforms other than r0 alone, completed to the group that they generate. All runs share one group."""
    measure: Literal["l2", "relative", "cosine", "pearson"] = "l2"
    """The score; l2 is the paper's."""
    out: Annotated[str | None, argument(metavar="DIR")] = None
    """Folder for the figures (SVG, PDF, PNG) and their data (JSON)."""
    json: bool = False
    """Print JSON instead of a table."""


def main(arguments: Sequence[str]) -> int:
    """Print the table, and draw the figures if a folder for them is given."""
    options = parse(Options, "invariance", arguments)
    if not options.runs:
        raise ConfigError("no run given; give the folder of a finished run", field="runs")
    out = make_folder(options.out)
    from transnet.report.kernels import compare_kernels, draw_kernels, print_comparison
    from transnet.runs.records import encode

    comparison = compare_kernels(options.runs, options.group, options.measure)
    content = json.dumps(encode(comparison), indent=1)
    if options.json:
        print(content)
    else:
        print_comparison(comparison)
    if out:
        figures = draw_kernels(comparison, out)
        (out / "invariance.json").write_text(content)
        say(f"drawn: {', '.join(map(str, figures))}")
    return 0
