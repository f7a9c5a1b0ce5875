"""`transnet reproduce`: plan, carry out, measure, report."""

from pathlib import Path

from transnet.study.execute import Here, Outcome, Place, execute
from transnet.study.finished import note_study
from transnet.study.plan import Study, plan
from transnet.study.report import write_report


def reproduce(study: Study, *, quiet: bool = False) -> tuple[Outcome, Path | None]:
    """Carry out a study and write its report.

    Returns:
        How the runs went, and the report; None where the study was stopped or no run finished.
    """
    runs = plan(study)
    Path(study.out).mkdir(parents=True, exist_ok=True)
    outcome = execute(runs, _place(study), quiet=quiet)
    note_study(study, outcome.failed)
    if outcome.stopped or len(outcome.failed) == len(runs):
        return outcome, None
    return outcome, write_report(study.out, device=study.device)


def _place(study: Study) -> Place:
    if study.on == "here":
        return Here(study)
    from transnet.study.on_ray import Cluster

    return Cluster(study)
