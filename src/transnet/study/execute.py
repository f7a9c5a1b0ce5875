"""Carry out a study's runs, several at once, on this machine or on a cluster.

A run that fails is reported and the others go on. Ctrl-C lets every run finish its step and save; the same command
continues from there. A study that is killed loses at most the epochs in progress.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from transnet import backbones
from transnet.console import say
from transnet.data import open_data
from transnet.data.catalog import NAMES
from transnet.errors import ConfigError
from transnet.runs.folder import Run
from transnet.study.cuda_mps import gpu_name
from transnet.study.estimate import Budget, Estimate, is_here
from transnet.study.file import Study
from transnet.study.local import LocalProcesses, gpus_for, start_server
from transnet.study.plan import PlannedRun, plan_runs, unplanned, write_notes
from transnet.study.progress import StudyProgress
from transnet.study.worker import Ended
from transnet.train.device import find_device
from transnet.train.distributed import World
from transnet.train.evaluate_runs import own_data
from transnet.train.interrupt import Interrupt
from transnet.train.setup import check_outside

POLL_EVERY = 0.1  # seconds
CHOOSE_EVERY = 5.0  # seconds between checks of how long the runs take
RETRY_EVERY = 5.0  # seconds, for a run that another process trains


class Executor(Protocol):
    """Where runs are carried out: this machine or a cluster."""

    places: int

    def start(self, run: PlannedRun) -> bool:
        """Start a run; False if there is no room for it now."""

    def ended(self) -> list[Ended]:
        """The runs that ended since the last call."""

    def stop(self) -> None:
        """Ask all runs to save and end, and wait until they have."""

    def close(self) -> None:
        """End whatever is still running."""


@dataclass(frozen=True)
class Settings:
    """How a study is carried out.

    Attributes:
        out: its folder.
        on: processes of this machine, or a Ray cluster.
        jobs: runs at once, on each GPU or on the CPU; None: as many as suit the machine.
        budget: the time that it may take; None: as long as it needs.
        quiet: print nothing.
    """

    out: str
    on: Literal["here", "ray"] = "here"
    jobs: int | None = None
    budget: Budget | None = None
    quiet: bool = False


@dataclass
class Outcome:
    """How a study went.

    Attributes:
        failed: the error of every run that failed.
        stopped: whether it was stopped before everything was done.
        out_of_time: whether that was because the budget was used up.
        seconds_left: training time that is left to do; None if it is unknown.
    """

    failed: dict[str, str] = field(default_factory=dict)
    stopped: bool = False
    out_of_time: bool = False
    seconds_left: float | None = 0.0


def run_study(study: Study, settings: Settings) -> Outcome:
    """Check a study and its folder, then carry it out.

    Raises:
        ConfigError: if the study does not go with what the folder holds.
        DataError: if its data is missing, or differs from what its finished runs were trained on.
    """
    if settings.on == "here":
        start_server()  # before data is opened, which may need processes of its own
    runs = prepare(study, settings)
    try:
        write_notes(study, runs, settings.out, failed=())
    except OSError as error:
        message = f"{settings.out} cannot be written ({error.strerror}); give another folder"
        raise ConfigError(message, field="out") from None
    for name in unplanned(settings.out):
        say(f"note: {settings.out}/runs/{name} belongs to no study of this folder", shown=not settings.quiet)
    outcome = execute(runs, _executor(study, settings), settings, estimate(study, runs))
    write_notes(study, runs, settings.out, failed=outcome.failed)
    return outcome


def prepare(study: Study, settings: Settings) -> list[PlannedRun]:
    """Plan a study's runs and check everything that would make all of them fail, before anything is written."""
    _check_folder(Path(settings.out))
    runs = plan_runs(study, settings.out)
    device = str(study.train.get("device", "auto"))
    _check_data(study.data, runs, settings.on)
    check_outside(settings.out, study.data)
    if settings.on == "here":
        find_device(device, World())
        for model in {run.config.model for run in runs} - {None}:
            backbones.create(str(model), num_classes=2)
    return runs


def estimate(study: Study, runs: Sequence[PlannedRun]) -> Estimate:
    """Passes and minutes of a study's runs on this machine."""
    gpus = gpus_for(str(study.train.get("device", "auto")))
    return Estimate(runs, (gpu_name(gpus[0]) or "") if gpus else "CPU", open_data=True)


def execute(
    runs: Sequence[PlannedRun], executor: Executor, settings: Settings, speed: Estimate | None = None
) -> Outcome:
    """Carry out all runs that are not done yet.

    Args:
        runs: the planned runs.
        executor: where they are carried out; it is closed afterwards.
        settings: what the executor does not know.
        speed: an estimate of the runs; needed with a budget.
    """
    done = {run.name for run in runs if run.done}
    waiting = [run for run in runs if run.name not in done]
    queue = _Queue(waiting, settings.budget, speed)
    outcome, running = Outcome(), 0
    with StudyProgress(runs, done, shown=not settings.quiet) as progress, Interrupt() as interrupt:
        try:
            while queue.waiting or running:
                for run in queue.next_runs():
                    begun = time.time()
                    if not executor.start(run):
                        break
                    progress.started[run.name] = begun
                    queue.waiting.remove(run)
                    running += 1
                outcome.out_of_time = queue.out_of_time(running)
                if stop := interrupt.requested or outcome.out_of_time:
                    if running:
                        progress.say("stopping: every run finishes its step and saves; Ctrl-C again ends them at once")
                    executor.stop()
                    outcome.stopped = True
                for end in executor.ended():
                    running -= 1
                    if end.busy:
                        progress.started.pop(end.name, None)
                        queue.retry(next(run for run in runs if run.name == end.name))
                    elif end.stopped:
                        outcome.stopped = True
                    else:
                        progress.ended(end.name, end.error)
                if stop:
                    break
                progress.refresh()
                if queue.waiting or running:
                    time.sleep(POLL_EVERY)
        finally:
            executor.close()
        outcome.failed = progress.failed
    if outcome.stopped and speed:
        speed.refresh()
        outcome.seconds_left = speed.left([run for run in runs if run.name not in outcome.failed], executor.places)
    return outcome


class _Queue:
    """The runs that wait, in the order in which they may start."""

    def __init__(self, waiting: list[PlannedRun], budget: Budget | None, speed: Estimate | None) -> None:
        self.waiting, self._budget, self._speed = waiting, budget, speed
        self._allowed, self._chosen_at = waiting, -math.inf
        self._not_before: dict[str, float] = {}
        if budget and waiting:
            assert speed is not None
            budget.check(speed)

    def next_runs(self) -> list[PlannedRun]:
        """Those that may start now, in order."""
        now = time.monotonic()
        if not self._budget or not self._speed:
            self._allowed = self.waiting
        elif now - self._chosen_at > CHOOSE_EVERY:
            self._speed.refresh()
            self._allowed, self._chosen_at = self._budget.choose(self.waiting, self._speed), now
        return [run for run in self._allowed if run in self.waiting and self._not_before.get(run.name, 0) <= now]

    def retry(self, run: PlannedRun) -> None:
        """Another process trains this run: look again later, because that process may be stopped."""
        self._not_before[run.name] = time.monotonic() + RETRY_EVERY
        self.waiting.append(run)

    def out_of_time(self, running: int) -> bool:
        """Whether the budget is used up, or too little is left to start any run."""
        if not self._budget:
            return False
        return self._budget.left <= 0 or bool(self.waiting and not self._allowed and not running)


def _check_folder(out: Path) -> None:
    """A study needs a folder of its own, not one with the files of a run or of anything else."""
    ours = ("runs", "logs", "study.json")
    if out.is_dir() and any(out.iterdir()) and not any((out / name).exists() for name in ours):
        raise ConfigError(f"{out} holds other files and no study; give a new folder, or that of a study", field="out")


def _check_data(data: str, runs: Sequence[PlannedRun], on: str) -> None:
    """The finished runs must have been trained on the data that the others will see. Data that is gone is needed
    only if runs are left to train."""
    if on != "here":  # a cluster's nodes may have data that this machine does not have
        return
    finished = [run for run in runs if Run(run.path).finished]
    if len(finished) < len(runs) and data not in NAMES and not is_here(data):
        open_data(data)  # raises what every run would raise
    if finished and (len(finished) < len(runs) or is_here(data)):
        own_data(finished[0].path, at=data)


def _executor(study: Study, settings: Settings) -> Executor:
    device = str(study.train.get("device", "auto"))
    if settings.on == "here":
        return LocalProcesses(settings.out, device=device, jobs=settings.jobs)
    from transnet.study.ray import RayCluster

    return RayCluster(device=device, jobs=settings.jobs)
