"""Carry out a study's runs: several at once, in processes of this machine.

A run that fails is reported and the others go on. Ctrl-C lets every run finish its step and save; the next call goes
on from there. A study that is killed loses at most the epochs in progress.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol

from transnet.study.overview import Overview
from transnet.study.plan import PlannedRun, Study
from transnet.study.worker import STOPPED, TOLD, work
from transnet.train.interrupt import Interrupt
from transnet.train.run import Run

LOOK_EVERY = 0.1  # seconds between looks at the runs


class Place(Protocol):
    """Where runs are carried out: this machine or a cluster."""

    def room(self) -> bool:
        """Whether another run may be handed over."""

    def start(self, run: PlannedRun) -> None:
        """Hand a run over."""

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
                while waiting and place.room():
                    run = waiting.pop(0)
                    overview.started[run.name] = time.time()
                    place.start(run)
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


class Here:
    """Processes of this machine, each with its share of the cores or its GPU.

    Args:
        study: for its folder, ``jobs`` and ``device``.
    """

    def __init__(self, study: Study) -> None:
        self.logs = Path(study.out) / "logs"
        self.gpus = _gpus(study.device)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.places = self.gpus * (study.jobs or 1) if self.gpus else study.jobs or cores
        # Small networks gain nothing from a second thread, and threads of several runs on one core slow all of them.
        self.threads = max(cores // self.places, 1)
        # Every run starts from a process that has imported everything: seconds a run, most of a small one's time.
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(["transnet.train.loop", "timm", "torchvision", "sklearn.datasets"])
        _start_server()
        self._running: dict[str, tuple[BaseProcess, int]] = {}

    def room(self) -> bool:
        """Whether a place is free."""
        return len(self._running) < self.places

    def start(self, run: PlannedRun) -> None:
        """Start its process; what it says goes to ``logs/``."""
        self.logs.mkdir(parents=True, exist_ok=True)
        slot = min(set(range(self.places)) - {slot for _, slot in self._running.values()})
        environment = {"OMP_NUM_THREADS": str(self.threads)}
        if self.gpus > 1:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(self.gpus)))
            environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[slot % self.gpus]
        process = self._processes.Process(
            target=work, args=(run.config, run.data, self._log(run.name), environment, self.threads)
        )
        process.start()
        self._running[run.name] = process, slot

    def ended(self) -> list[tuple[str, str | None]]:
        """The runs whose process ended."""
        found: list[tuple[str, str | None]] = []
        for name, (process, _) in list(self._running.items()):
            status = process.exitcode
            if status is not None:
                del self._running[name]
                process.join()
                found.append((name, self._reason(name, status) if status else None))
        return found

    def stop(self) -> None:
        """Ask every process to save and end."""
        for process, _ in self._running.values():
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, signal.SIGINT)
        for process, _ in self._running.values():
            process.join()

    def close(self) -> None:
        """End every process that is left."""
        for process, _ in self._running.values():
            process.kill()
            process.join()
        self._running.clear()

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


def _start_server() -> None:
    """Start the process that forks the runs' such that it ignores SIGTERM.

    A scheduler sends that to all processes of a job. The runs save and end; this one must live to tell how they ended.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is ignored stays ignored in a new program
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGTERM, before)


def _gpus(device: str) -> int:
    """How many there are to use; 0 for a study on the CPU."""
    if device == "cpu":
        return 0
    import torch

    if ":" in device:
        return 1
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
