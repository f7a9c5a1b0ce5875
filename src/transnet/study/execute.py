"""Carry out a study's runs, several at once, on this machine or on a cluster.

A run that fails is reported and the others go on. Ctrl-C lets every run finish its step and save; the same command
continues from there. A study that is killed loses at most the epochs in progress.
"""

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from transnet import backbones
from transnet.console import say
from transnet.data import open_data
from transnet.data.catalog import NAMES
from transnet.errors import ConfigError
from transnet.runs.folder import Run
from transnet.study.estimate import Budget, Estimate, is_here
from transnet.study.file import Study
from transnet.study.local import LocalProcesses, start_server
from transnet.study.plan import PlannedRun, plan_runs, unplanned, write_notes
from transnet.study.progress import StudyProgress
from transnet.study.ray import RayCluster
from transnet.train.device import find_device
from transnet.train.distributed import World
from transnet.train.evaluate_runs import own_data
from transnet.train.interrupt import Interrupt
from transnet.train.setup import check_outside

_POLL_EVERY = 0.1  # seconds
_REFRESH_EVERY = 5.0  # seconds between checks of how long the runs take
_RETRY_EVERY = 5.0  # seconds, for a run that another process trains: that process may be stopped

Place = Literal["here", "ray"]  # processes of this machine, or a Ray cluster


@dataclass
class Outcome:
    """How a study went."""

    at_once: int  # runs at a time
    failed: dict[str, str] = field(default_factory=dict)  # the error of every run that failed
    stopped: bool = False  # before everything was done
    out_of_time: bool = False  # stopped because the budget was used up


def run_study(
    study: Study, out: str | Path, *, on: Place = "here", jobs: int | None = None, budget: Budget | None = None,
    quiet: bool = False,
) -> Outcome:  # fmt: skip
    """Check a study and its folder, then carry it out.

    Args:
        study: what to train.
        out: its folder.
        on: where to train.
        jobs: runs at once, on each GPU or on the CPU; None: as many as suit the machine.
        budget: the time that it may take; None: as long as it needs.
        quiet: print nothing.

    Raises:
        ConfigError: if the study does not go with what the folder holds.
        DataError: if its data is missing, or differs from what its finished runs were trained on.
    """
    if on == "here":
        start_server()  # before data is opened, which may need processes of its own
    runs = prepare(study, out, on)
    try:
        write_notes(study, runs, out, failed=())
    except OSError as error:
        raise ConfigError(f"{out} cannot be written ({error.strerror}); give another folder", field="out") from None
    for name in unplanned(out):
        say(f"note: {out}/runs/{name} belongs to no study of this folder", shown=not quiet)
    if on == "ray":
        executor: LocalProcesses | RayCluster = RayCluster(device=study.device, jobs=jobs)
    else:
        executor = LocalProcesses(out, device=study.device, jobs=jobs)
    outcome = execute(runs, executor, budget=budget, quiet=quiet)
    write_notes(study, runs, out, failed=outcome.failed)
    return outcome


def prepare(study: Study, out: str | Path, on: Place) -> list[PlannedRun]:
    """Plan a study's runs and check everything that would make all of them fail, before anything is written."""
    folder, ours = Path(out), ("runs", "logs", "study.json")
    if folder.is_dir() and any(folder.iterdir()) and not any((folder / name).exists() for name in ours):
        raise ConfigError(f"{out} holds other files and no study; give a new folder, or that of a study", field="out")
    runs = plan_runs(study, out)
    check_outside(str(out), study.data)
    if on == "here":  # a cluster's nodes may have data and devices that this machine does not have
        _check_data(study.data, runs)
        find_device(study.device, World())
        for model in {run.config.model for run in runs} - {None}:
            backbones.create(str(model), num_classes=2)
    return runs


def _check_data(data: str, runs: Sequence[PlannedRun]) -> None:
    """The finished runs must have been trained on the data that the others will see.

    Data that is gone is needed only if runs are left to train.
    """
    finished = [run for run in runs if Run(run.path).finished]
    if len(finished) < len(runs) and data not in NAMES and not is_here(data):
        open_data(data)  # raises what every run would raise
    if finished and (len(finished) < len(runs) or is_here(data)):
        own_data(finished[0].path, at=data)


def execute(
    runs: Sequence[PlannedRun], executor: LocalProcesses | RayCluster, *, budget: Budget | None = None,
    quiet: bool = False,
) -> Outcome:  # fmt: skip
    """Carry out all runs that are not done yet, and close the executor."""
    outcome, estimate = Outcome(executor.places), Estimate(runs)
    progress = StudyProgress(estimate, executor.places, shown=not quiet)
    waiting = [run for run in runs if run.name not in progress.done]
    if budget and waiting:
        budget.check(estimate)
    refresh_at, retry_at = 0.0, dict.fromkeys(progress.runs, 0.0)
    with progress, Interrupt() as interrupt, closing(executor):
        while waiting or progress.started:
            now, may_start = time.monotonic(), True
            if now >= refresh_at:
                estimate.refresh()
                refresh_at = now + _REFRESH_EVERY
                waiting = budget.in_order(waiting, estimate) if budget else waiting
            if budget:
                may_start = budget.left > estimate.start_up  # otherwise a run would be stopped with nothing to save
                outcome.out_of_time = budget.left <= 0 or not (may_start or progress.started)
            for run in [run for run in waiting if may_start and retry_at[run.name] <= now]:
                begun = time.time()
                if not executor.start(run):
                    break
                progress.started[run.name] = begun
                waiting.remove(run)
            stop = interrupt.requested or outcome.out_of_time
            if stop:
                if progress.started:
                    text = "stopping: every run finishes its step and saves; Ctrl-C again ends them at once"
                    say(text, shown=not quiet)
                executor.stop()
                outcome.stopped = True
            for end in executor.ended():
                if end.busy:
                    del progress.started[end.name]
                    waiting.append(progress.runs[end.name])
                    retry_at[end.name] = now + _RETRY_EVERY
                elif end.stopped:
                    del progress.started[end.name]
                    outcome.stopped = True
                else:
                    progress.ended(end.name, end.error)
            if stop:
                break
            progress.refresh()
            time.sleep(_POLL_EVERY if waiting or progress.started else 0)
    outcome.failed = progress.failed
    return outcome
