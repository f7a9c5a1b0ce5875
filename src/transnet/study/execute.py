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
from transnet.data.catalog import DATASETS
from transnet.errors import ConfigError
from transnet.runs import own_transforms
from transnet.runs.folder import Run
from transnet.study.estimate import Budget, Estimate, is_local
from transnet.study.file import Study
from transnet.study.local import LocalProcesses, start_forkserver
from transnet.study.plan import PlannedRun, decided, plan_runs, unplanned, write_notes
from transnet.study.progress import StudyProgress
from transnet.study.ray import RayCluster
from transnet.train.device import find_device
from transnet.train.distributed import World
from transnet.train.evaluate_runs import own_data
from transnet.train.interrupt import Interrupt
from transnet.train.setup import check_out_not_in_data

_POLL_EVERY = 0.1  # seconds
_REFRESH_EVERY = 5.0  # seconds until the estimate is updated, and runs that another process trains are tried again

Where = Literal["here", "ray"]  # in processes of this machine, or on a Ray cluster


@dataclass
class Outcome:
    """How a study went."""

    at_once: int  # runs at a time
    failed: dict[str, str] = field(default_factory=dict)  # the error of every run that failed
    stopped: bool = False  # whether it ended before all runs were done
    out_of_time: bool = False  # whether that was because the budget was used up


def run_study(
    study: Study, out: str | Path, *, on: Where = "here", jobs: int | None = None, budget: Budget | None = None,
    quiet: bool = False,
) -> Outcome:  # fmt: skip
    """Check a study and its folder ``out``, then carry it out, with ``jobs`` runs at once on each GPU or on the CPU."""
    if on == "here":
        start_forkserver()  # before data is opened, which may start other processes
    runs = plan_and_check(study, out, on)
    try:
        write_notes(study, runs, out, failed=())
    except OSError as error:
        raise ConfigError(f"{out} cannot be written ({error.strerror}); give another folder", field="out") from None
    for name in sorted(study.variants.keys() - decided(study, out).variants.keys()):
        say(f"note: {study.series}-{name} waits for the study that decides its options", shown=not quiet)
    for name in unplanned(out):
        say(f"note: {out}/runs/{name} belongs to no study of this folder", shown=not quiet)
    if on == "ray":
        executor: LocalProcesses | RayCluster = RayCluster(device=study.device, jobs=jobs)
    else:
        executor = LocalProcesses(out, device=study.device, jobs=jobs)
    outcome = execute(runs, executor, budget=budget, quiet=quiet)
    write_notes(study, runs, out, failed=outcome.failed)
    return outcome


def plan_and_check(study: Study, out: str | Path, on: Where) -> list[PlannedRun]:
    """Plan a study's runs and check everything that would make all of them fail, before anything is written."""
    folder, ours = Path(out), ("runs", "logs", "study.json")
    if folder.is_dir() and any(folder.iterdir()) and not any((folder / name).exists() for name in ours):
        raise ConfigError(f"{out} holds other files and no study; give a new folder, or that of a study", field="out")
    runs = plan_runs(study, out)
    check_out_not_in_data(str(out), study.data)
    for run in runs:
        own_transforms.with_functions(run.config.names, run.config.transform)
    if on == "here":  # a cluster's nodes may have data and devices that this machine does not have
        # Finished runs must have the same data as those that are left. If none is left, the data may be gone.
        finished = [run for run in runs if Run(run.path).finished]
        local, complete = is_local(study.data), len(finished) == len(runs)
        if not (complete or local or study.data in DATASETS):
            open_data(study.data)  # raises the error that every run would raise
        if finished and (local or not complete):
            own_data(finished[0].path, at=study.data)
        find_device(study.device, World())
        for model in {run.config.model for run in runs} - {None}:
            backbones.create(str(model), num_classes=2)
    return runs


def execute(
    runs: Sequence[PlannedRun], executor: LocalProcesses | RayCluster, *, budget: Budget | None = None,
    quiet: bool = False,
) -> Outcome:  # fmt: skip
    """Carry out all runs that are not done yet, and close the executor."""
    outcome, estimate = Outcome(executor.slots), Estimate(runs)
    progress = StudyProgress(estimate, executor.slots, shown=not quiet)
    waiting = [run for run in runs if run.name not in progress.done]
    if budget and waiting:
        budget.check(estimate)
    refresh_at, busy = 0.0, list[PlannedRun]()
    with progress, Interrupt() as interrupt, closing(executor):
        while waiting or busy or progress.running:
            if time.monotonic() >= refresh_at:
                refresh_at = time.monotonic() + _REFRESH_EVERY
                estimate.refresh()
                waiting, busy = [*waiting, *busy], []  # another process may have stopped training the busy ones
                waiting = budget.in_order(waiting, estimate) if budget else waiting
            may_start = True
            if budget:
                may_start = budget.left > estimate.start_up  # otherwise a run would be stopped with nothing to save
                outcome.out_of_time = budget.left <= 0 or not (may_start or progress.running)
            while waiting and may_start:
                begun = time.time()
                if not executor.start(waiting[0]):
                    break
                progress.running[waiting.pop(0).name] = begun
            stop = interrupt.requested or outcome.out_of_time
            if stop:
                if progress.running:
                    say("stopping: every run saves after its step; Ctrl-C again ends them at once", shown=not quiet)
                executor.stop()
            for end in executor.ended():
                progress.ended(end)
                busy += [progress.runs[end.name]] if end.busy else []
                outcome.stopped = outcome.stopped or end.stopped
            if stop:  # the last runs may have finished meanwhile
                outcome.stopped = outcome.stopped or bool(waiting or busy or progress.running)
                break
            time.sleep(_POLL_EVERY if waiting or busy or progress.running else 0)
    outcome.failed = progress.failed
    return outcome
