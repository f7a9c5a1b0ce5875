"""``transnet invariance``."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Annotated, Literal

import tyro

from transnet.cli.options import folder_for, made


@dataclasses.dataclass(frozen=True)
class Options:
    """How far the kernels of finished runs are from invariant ones: a table, and the paper's Figs. 5 and 6.

    Higher is less invariant for l2 and relative, more invariant for cosine and pearson. 1×1 kernels are left out.

    Example: transnet invariance runs/base runs/t2 runs/t3 --out figures
    """

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN…")]
    """Folders of finished runs."""
    group: str = "r0,r1,r2,r3"
    """The transforms, completed to the group they generate; one group for all runs, and more than r0."""
    measure: Literal["l2", "relative", "cosine", "pearson"] = "l2"
    """l2 is the paper's score."""
    out: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Draw the figures here, as SVG, PDF and PNG, and keep their data as JSON."""
    json: bool = False
    """Print JSON instead of a table."""


def run(arguments: Sequence[str]) -> int:
    """Print the table, and draw the figures where asked to."""
    options = tyro.cli(Options, prog="transnet invariance", args=list(arguments))
    if not options.runs:
        raise ValueError("invariance: no run given; give the folder of a finished run")
    out = folder_for(options.out)
    from transnet import d4
    from transnet.report.kernels import compare, draw, print_comparison

    try:
        group = d4.generate(options.group)
    except ValueError as error:
        raise ValueError(str(error).replace("transforms:", "--group:", 1)) from None
    if group == ("r0",):
        raise ValueError(
            f"--group: {options.group} is the identity alone, under which every kernel is invariant; add another "
            "transform, such as r1 for all rotations or m0 for the mirror image"
        )
    comparison = compare(list(options.runs), group=options.group, measure=options.measure)
    if out:
        made(out)
    if options.json:
        print(json.dumps(comparison, indent=1))
    else:
        print_comparison(comparison)
    if out:
        files = draw(comparison, out)
        (out / "invariance.json").write_text(json.dumps(comparison, indent=1))
        print("drawn: " + ", ".join(str(file) for file in files if file.suffix == ".png"), file=sys.stderr)
    return 0
