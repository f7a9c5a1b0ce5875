"""Carry out a study's runs: several at once, in processes of this machine.

A run that fails is reported and the others go on. Ctrl-C lets every run finish its step and save; the next call goes
on from there. A study that is killed loses at most the epochs in progress.
"""

import dataclasses
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol

from transnet.runs.folder import Run
from transnet.study.cuda_mps import AT_ONCE, SPARE, is_served, start_service, used_and_free
from transnet.study.plan import PlannedRun, Study
from transnet.study.progress import Overview
from transnet.study.worker import STOPPED, TOLD, work
from transnet.train.interrupt import Interrupt

LOOK_EVERY = 0.1  # seconds between looks at the runs
ASK_EVERY = 2.0  # seconds between questions about memory


class Place(Protocol):
    """Where runs are carried out: this machine or a cluster."""

    def start(self, run: PlannedRun) -> bool:
        """Hand a run over; False where there is no room for it now."""

    def ended(self) -> list[tuple[str, str | None]]:
        """The runs that ended since the last call, each with its error, `TOLD` where it was stopped, or None."""

    def stop(self) -> None:
        """Ask all runs to save and end, and wait for that."""

    def close(self) -> None:
        """End whatever is still running."""


@dataclass
class Outcome:
    """How a study went."""

    failed: dict[str, str] = field(default_factory=dict)
    stopped: bool = False


def execute(runs: Sequence[PlannedRun], place: Place, *, quiet: bool = False) -> Outcome:
    """Carry out all runs that are not finished yet."""
    done = {run.name for run in runs if Run(run.config.out).finished}
    waiting = [run for run in runs if run.name not in done]
    outcome = Outcome()
    left = len(waiting)
    with Overview(runs, done, shown=not quiet) as overview, Interrupt() as interrupt:
        try:
            while left:
                while waiting:
                    begun = time.time()
                    if not place.start(waiting[0]):
                        break
                    overview.started[waiting.pop(0).name] = begun
                if interrupt.asked:
                    overview.say("stopping: every run finishes its step and saves; Ctrl-C again to end at once")
                    place.stop()
                    outcome.stopped = True
                for name, error in place.ended():
                    left -= 1
                    if error == TOLD:
                        outcome.stopped = True
                    else:
                        overview.ended(name, error)
                if interrupt.asked:
                    break
                overview.refresh()
                if left:
                    time.sleep(LOOK_EVERY)
        finally:
            place.close()
        outcome.failed = overview.failed
    return outcome


@dataclass(frozen=True)
class _Running:
    """A run in its process, in its place, since when."""

    run: PlannedRun
    process: BaseProcess
    slot: int
    begun: float

    @property
    def has_trained(self) -> bool:
        """Whether an epoch is over since it began, after which it has all the memory that it needs."""
        metrics = Run(self.run.config.out).metrics_file
        return metrics.exists() and metrics.stat().st_mtime > self.begun


class Here:
    """Processes of this machine, each with its share of the cores or its GPU.

    Without ``jobs`` a GPU takes `AT_ONCE` runs where NVIDIA's Multi-Process Service runs them side by side and its
    memory has room for the second by what the first takes; otherwise one.

    Args:
        study: for its folder, ``jobs`` and ``device``.
    """

    def __init__(self, study: Study) -> None:
        self.logs = Path(study.out) / "logs"
        self.gpus = _gpus(study.device)
        self.service = start_service() if self.gpus and study.jobs != 1 else None
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        at_once = study.jobs or (AT_ONCE if self.service or is_served() else 1)
        self.places = len(self.gpus) * at_once if self.gpus else study.jobs or cores
        self.asks_for_memory = bool(self.gpus) and study.jobs is None
        # Small networks gain nothing from a second thread, and threads of several runs on one core slow all of them.
        self.threads = max(cores // self.places, 1)
        start_server()
        self._processes = multiprocessing.get_context("forkserver")
        self._running: dict[str, _Running] = {}
        self._asked = -math.inf

    def start(self, run: PlannedRun) -> bool:
        """Start its process, where a place is free; what it says goes to ``logs/``."""
        slot = self._free_slot(run)
        if slot is None:
            return False
        self.logs.mkdir(parents=True, exist_ok=True)
        environment = {"OMP_NUM_THREADS": str(self.threads), **(self.service.environment if self.service else {})}
        if len(self.gpus) > 1:
            environment["CUDA_VISIBLE_DEVICES"] = self._gpu(slot)
        at_once = self.places // max(len(self.gpus), 1)
        config = run.config
        if self.gpus and config.device == "auto":  # a GPU that is there, but cannot be had, must not mean the CPU
            config = dataclasses.replace(config, device="cuda")
        process = self._processes.Process(
            target=work, args=(config, run.data, self._log(run.name), environment, self.threads, at_once)
        )
        begun = time.time()
        process.start()
        self._running[run.name] = _Running(run, process, slot, begun)
        return True

    def ended(self) -> list[tuple[str, str | None]]:
        """The runs whose process ended."""
        found: list[tuple[str, str | None]] = []
        for name, running in list(self._running.items()):
            status = running.process.exitcode
            if status is not None:
                del self._running[name]
                running.process.join()
                found.append((name, self._reason(name, status) if status else None))
        return found

    def stop(self) -> None:
        """Ask every process to save and end."""
        processes = [running.process for running in self._running.values()]
        for process in processes:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, signal.SIGINT)
        for process in processes:
            process.join()

    def close(self) -> None:
        """End every process that is left."""
        for running in self._running.values():
            running.process.kill()
            running.process.join()
        self._running.clear()
        if self.service:
            self.service.close()
            self.service = None

    def _gpu(self, slot: int) -> str:
        return self.gpus[slot % len(self.gpus)]

    def _free_slot(self, run: PlannedRun) -> int | None:
        """The first free place that has room for the run: every GPU gets one run before any gets a second."""
        free = sorted(set(range(self.places)) - {running.slot for running in self._running.values()})
        return next((slot for slot in free if self._fits(run, slot)), None)

    def _fits(self, run: PlannedRun, slot: int) -> bool:
        """Whether the GPU has memory for it: by head, as much as those take that train there already."""
        if not self.asks_for_memory:
            return True
        gpu = self._gpu(slot)
        others = [other for other in self._running.values() if self._gpu(other.slot) == gpu]
        if not others:
            return True
        if not all(other.has_trained for other in others) or time.monotonic() - self._asked < ASK_EVERY:
            return False
        self._asked = time.monotonic()
        memory = used_and_free(gpu)
        if memory is None:
            return False
        used, unused = memory
        return unused >= SPARE * used * run.heads / sum(other.run.heads for other in others)

    def _log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def _reason(self, name: str, status: int) -> str:
        log = self._log(name)
        if status in (STOPPED, -signal.SIGTERM, -signal.SIGINT):  # the latter two before it began to train
            return TOLD
        if status < 0:
            return f"its process was ended by signal {-status} ({signal.Signals(-status).name}); see {log}"
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        return f"{lines[-1] if lines else f'exit status {status}'} (all of it in {log})"


def start_server() -> None:
    """Start the process that forks the runs', where none runs yet.

    It has imported everything already, which would take each run seconds. It ignores SIGTERM, because a scheduler
    sends that to all processes of a job: the runs save and end, and the server must survive to report how they ended.

    Each run's process starts with SIGINT blocked, and never ignored, until its own code handles the signal. If SIGINT
    were not blocked, a run stopped that early would end with a traceback. If it were ignored, as under nohup, cron or
    ``&`` in a script, the request would be lost and the run would train to its end.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        ["transnet.train.trainer", "timm", "torchvision", "sklearn.datasets"]
    )
    if threading.current_thread() is not threading.main_thread():
        return
    resource_tracker.ensure_running()  # else it is started along, and lets SIGINT through again
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # A new program inherits which signals are blocked, ignored or at their default.
    sigterm = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sigint = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, sigint)
        signal.signal(signal.SIGTERM, sigterm)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _gpus(device: str) -> list[str]:
    """Those to use, by number or UUID; none for a study on the CPU."""
    if device == "cpu":
        return []
    import torch

    number = torch.cuda.device_count() if torch.cuda.is_available() else 0
    visible = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(number)))).split(",")[:number]
    return [visible[int(device.partition(":")[2])]] if ":" in device else visible
