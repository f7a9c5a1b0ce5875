"""``transnet report``."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated

from transnet.arguments import Positional, argument
from transnet.cli.options import parse


@dataclasses.dataclass(frozen=True)
class Options:
    """Write DIR/report.html, one page with the tables, figures and runs of a study.

    Tables and figures also become files: DIR/tables (Markdown, CSV) and DIR/figures (SVG, PDF, PNG). The ensembles of
    Fig. 3 need the runs' predictions.npz: `transnet evaluate RUN --save-predictions`.

    Example: transnet report reproduced
    """

    folder: Annotated[Positional[str], argument(metavar="DIR")]
    """Folder of a study: its runs/ holds finished runs."""


def main(arguments: Sequence[str]) -> int:
    """Write the report and print its path."""
    options = parse(Options, "report", arguments)
    from transnet.report.page import write_report

    print(write_report(options.folder))
    return 0
