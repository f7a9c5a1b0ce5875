"""`transnet reproduce`: plan, carry out, measure, report."""

import os
from pathlib import Path

from transnet import backbones
from transnet.data import open_data
from transnet.data.catalog import NAMES, needs_download
from transnet.errors import ConfigError
from transnet.report.page import write_report
from transnet.runs.folder import Run
from transnet.study.execute import Here, Outcome, Place, execute, start_server
from transnet.study.old_results import note_study
from transnet.study.plan import PlannedRun, Study, plan
from transnet.train.device import find_device
from transnet.train.distributed import World
from transnet.train.evaluate_runs import own_data
from transnet.train.setup import check_apart


def reproduce(study: Study, *, quiet: bool = False) -> tuple[Outcome, Path | None]:
    """Carry out a study and write its report.

    Returns:
        How the runs went, and the report; None where the study was stopped or no run finished.
    """
    _check_folder(Path(study.out))
    if study.on == "here":
        start_server()  # before data is opened, which may need processes of its own
    runs = plan(study)
    _check_data(study, runs)
    check_apart(study.out, study.data)
    if study.on == "here":  # what every run would stop at is said once
        find_device(study.device, World())
        if study.model:
            backbones.create(study.model, num_classes=2)
    try:
        Path(study.out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{study.out} cannot be made ({error.strerror}); give another folder", field="out") from None
    outcome = execute(runs, _place(study), quiet=quiet)
    note_study(study, outcome.failed)
    if outcome.stopped or len(outcome.failed) == len(runs):
        return outcome, None
    return outcome, write_report(study.out)


def _check_folder(out: Path) -> None:
    """A study goes into a folder of its own, not among the files of a run or of anything else."""
    ours = ("runs", "logs", "study.json")
    if out.is_dir() and any(out.iterdir()) and not any((out / name).exists() for name in ours):
        raise ConfigError(f"{out} holds other files, but no study; give a new folder, or one of a study", field="out")


def _check_data(study: Study, runs: list[PlannedRun]) -> None:
    """Say it before anything is trained: what is finished must have seen the data that the rest is to see.

    Where nothing is left to train, the report may need no data: what is not here is not asked for.
    """
    finished = [run for run in runs if Run(run.config.out).finished]
    if study.on != "here":  # a cluster's nodes may have data that this one has not
        return
    if len(finished) < len(runs) and study.data not in NAMES and not _is_here(study.data):
        open_data(study.data)  # says what is wrong, once instead of in every run
    if finished and (len(finished) < len(runs) or _is_here(study.data)):
        own_data(finished[0].config.out, at=study.data)


def _is_here(data: str) -> bool:
    """Whether data can be opened without a download."""
    if data in NAMES:
        return not needs_download(data)
    return Path(os.path.expanduser(data)).exists()


def _place(study: Study) -> Place:
    if study.on == "here":
        return Here(study)
    from transnet.study.ray import Cluster

    return Cluster(study)
