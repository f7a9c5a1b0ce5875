"""``transnet reproduce``."""

import sys
from collections.abc import Sequence

from transnet.cli.options import parse


def main(arguments: Sequence[str]) -> int:
    """Carry out the study, say what it found, and print where its report lies."""
    from transnet.study.plan import Study

    study = parse(Study, "reproduce", arguments)
    from transnet.study.reproduce import reproduce

    outcome, page = reproduce(study)
    for name, error in outcome.failed.items():
        print(f"transnet: {name} failed: {error}", file=sys.stderr)
    if outcome.stopped:
        print("transnet: stopped; everything is saved. The same command goes on from here", file=sys.stderr)
        return 1
    if page:
        from transnet.report.tables import summary_table
        from transnet.study.results import read_runs

        for series in read_runs(study.out):
            if series.name == study.group and (table := summary_table(series)):
                print(table.markdown(), file=sys.stderr)
        print(page)
    return 1 if outcome.failed else 0
