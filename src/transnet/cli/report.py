"""``transnet report``."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Annotated

import tyro


@dataclasses.dataclass(frozen=True)
class Options:
    """Write DIR/report.html, one page of tables, figures and runs, from a study's finished runs.

    Tables and figures also go to files of their own: DIR/tables (Markdown, CSV) and DIR/figures (SVG, PDF, PNG).

    Example: transnet report reproduced
    """

    study: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DIR")]
    """Folder of a study, as `transnet reproduce --out` made it."""
    data: str | None = None
    """Where the data lies, if networks are still to be measured and its name does not find it."""
    device: str = "auto"
    """Where networks are measured, where that was not done before."""


def run(arguments: Sequence[str]) -> int:
    """Write the report, and print where it lies."""
    options = tyro.cli(Options, prog="transnet report", args=list(arguments))
    from transnet.data.catalog import NAMED
    from transnet.report.page import write_report

    if options.data and options.data not in NAMED and not os.path.exists(os.path.expanduser(options.data)):
        raise FileNotFoundError(f"--data: {options.data} does not exist")
    print(write_report(options.study, data=options.data, device=options.device))
    return 0
