"""Train runs in processes of this machine. They save and end if the process that started them ends."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path

from transnet.allocator import reuse_memory
from transnet.errors import OperationError, TransnetError
from transnet.runs.folder import Run, RunInUse
from transnet.study.cuda_mps import AT_ONCE, SPARE, is_served, start_service, used_and_free
from transnet.study.plan import PlannedRun

CHECK_MEMORY_EVERY = 2.0  # seconds between queries of a GPU's memory
_STOPPED, _BUSY = 3, 4  # exit statuses of a run's process


@dataclass(frozen=True)
class Ended:
    """A run that is not being trained any more. It is finished unless one of the following applies."""

    name: str
    error: str = ""  # why it failed
    stopped: bool = False  # it was stopped, and its state is saved
    busy: bool = False  # another process is training it


def train_run(run: PlannedRun, at_once: int, *, wait: float = 0.0) -> Ended:
    """In a process of its own, train a run or continue it, and save its predictions if the study wants them.

    Up to ``at_once`` runs share its device. If another process is training it, ``wait`` that many seconds.
    """
    from transnet.train.evaluate_runs import save_predictions
    from transnet.train.interrupt import Stopped
    from transnet.train.trainer import train

    reuse_memory()
    folder = Run(run.path)
    try:
        folder.acquire(timeout=wait)
        try:
            train(run.config, data=run.data, quiet=True, at_once=at_once)
            if not run.done:
                own = run.config.transform
                save_predictions(run.path, data=run.data, device=run.config.device, transform=own)
        finally:
            folder.release()
            if folder.finished:
                folder.drop_state()  # `acquire` created it again, for the lock
    except Stopped:
        return Ended(run.name, stopped=True)
    except RunInUse:
        return Ended(run.name, busy=True)
    except (TransnetError, OperationError, OSError) as error:
        return Ended(run.name, error=str(error))
    return Ended(run.name)


@dataclass(frozen=True)
class Running:
    """A run that is being trained."""

    run: PlannedRun
    process: BaseProcess
    slot: int
    begun: float

    @property
    def has_trained(self) -> bool:
        """Whether it has finished an epoch since it began, so that it now uses all the memory that it needs."""
        metrics = Run(self.run.path).metrics_file
        return metrics.exists() and metrics.stat().st_mtime > self.begun


class LocalProcesses:
    """Train each run in a process of this machine, with its share of the cores or its GPU.

    Each slot trains one run at a time. Without ``jobs``, the CPU has one slot per core and a GPU one or, if NVIDIA's
    Multi-Process Service is available, `AT_ONCE`: the others are used if the first run leaves them enough memory.
    """

    def __init__(self, out: str | Path, *, device: str = "auto", jobs: int | None = None) -> None:
        self.logs = Path(out) / "logs"
        gpus = gpus_for(device)
        self.service = start_service() if gpus and jobs != 1 else None
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        # The GPU of each slot, "" on the CPU. Every GPU gets one run before any gets a second.
        self.gpus = gpus * (jobs or (AT_ONCE if self.service or is_served() else 1)) or [""] * (jobs or cores)
        self.slots = len(self.gpus)
        self.checks_memory = bool(gpus) and jobs is None
        # Small networks gain nothing from a second thread, and threads of several runs on one core slow all of them.
        self.threads = max(cores // self.slots, 1)
        start_forkserver()
        self.running: dict[str, Running] = {}
        self._check_memory_at = 0.0

    def start(self, run: PlannedRun) -> bool:
        """Start the run's process if a slot is free. Its output goes to ``logs/``."""
        slot = self._free_slot(run)
        if slot is None:
            return False
        self.logs.mkdir(parents=True, exist_ok=True)
        environment = {"OMP_NUM_THREADS": str(self.threads), **(self.service.environment if self.service else {})}
        gpu, given = self.gpus[slot], run
        if len(set(self.gpus)) > 1:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        if gpu and run.config.device == "auto":  # if the GPU cannot be used, the run must not use the CPU instead
            given = replace(run, config=replace(run.config, device="cuda"))
        log = self.logs / f"{run.name}.log"
        arguments = (given, log, environment, self.threads, self.gpus.count(gpu))
        begun = time.time()
        process = multiprocessing.get_context("forkserver").Process(target=_run_process, args=arguments)
        process.start()
        self.running[run.name] = Running(run, process, slot, begun)
        return True

    def ended(self) -> list[Ended]:
        """The runs whose processes have ended since the last call."""
        statuses = [(name, running.process.exitcode) for name, running in self.running.items()]
        found = [self._ended(name, status) for name, status in statuses if status is not None]
        for end in found:
            del self.running[end.name]
        return found

    def stop(self) -> None:
        """Make every process save and end, and wait for it."""
        processes = [running.process for running in self.running.values()]
        for process in processes:
            if process.pid is not None and process.is_alive():
                with suppress(ProcessLookupError):  # it has ended since
                    os.kill(process.pid, signal.SIGINT)
        for process in processes:
            process.join()

    def close(self) -> None:
        """Kill every process that is left."""
        for running in self.running.values():
            running.process.kill()
            running.process.join()
        self.running.clear()
        if self.service:
            self.service.close()

    def _free_slot(self, run: PlannedRun) -> int | None:
        taken = {running.slot for running in self.running.values()}
        for slot, gpu in enumerate(self.gpus):
            if slot not in taken and (not self.checks_memory or self._has_memory(gpu, run)):
                return slot
        return None

    def _has_memory(self, gpu: str, run: PlannedRun) -> bool:
        """Whether the GPU has memory for the run, judged by the memory per head of the runs that it already trains."""
        others = [other for other in self.running.values() if self.gpus[other.slot] == gpu]
        if not others:
            return True
        if not all(other.has_trained for other in others) or time.monotonic() < self._check_memory_at:
            return False
        self._check_memory_at = time.monotonic() + CHECK_MEMORY_EVERY
        used, free = used_and_free(gpu) or (0, -1)
        return free >= SPARE * used * run.heads / sum(other.run.heads for other in others)

    def _ended(self, name: str, status: int) -> Ended:
        if status == 0:
            return Ended(name)
        if status == _BUSY:
            return Ended(name, busy=True)
        if status in (_STOPPED, -signal.SIGTERM, -signal.SIGINT):  # a signal: before it began to train
            return Ended(name, stopped=True)
        log = self.logs / f"{name}.log"
        if status < 0:
            return Ended(name, error=f"its process was ended by {signal.Signals(-status).name}; see {log}")
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        return Ended(name, error=f"{lines[-1] if lines else f'exit status {status}'} (the whole log is {log})")


def start_forkserver() -> None:
    """Start the process that the runs' processes are forked from, unless there is one.

    It has already imported everything, which would take each run seconds. It ignores SIGTERM, because a scheduler sends
    that to all processes of a job, and this one must survive to report how the runs ended. A run's process starts with
    SIGINT blocked until its own code handles it; otherwise a run stopped that early would end with a traceback. SIGINT
    must not be ignored, as under nohup, cron or ``&`` in a script; otherwise the run could not be stopped.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        ["transnet.train.trainer", "timm", "torchvision", "sklearn.datasets"]
    )
    if threading.current_thread() is not threading.main_thread():
        return
    resource_tracker.ensure_running()  # otherwise `ensure_running` below would start it, which unblocks SIGINT
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


def _run_process(run: PlannedRun, log: Path, environment: dict[str, str], threads: int, at_once: int) -> None:
    """The process of a run. If it fails, the reason is the log's last line."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the process that forked this one ignores it
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until it trains: being stopped earlier is no failure
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # it may have arrived while the process began
    os.setsid()  # Ctrl-C in the terminal reaches only the study, which then signals each run once
    with open(log, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(environment)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Its data workers start by Python's default, as those of a single run do, and not by a fork server of their own.
    multiprocessing.set_start_method(None, force=True)
    import torch

    torch.set_num_threads(threads)
    ended = train_run(run, at_once)
    if ended.error:
        sys.exit(ended.error)
    sys.exit(_STOPPED if ended.stopped else _BUSY if ended.busy else 0)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def gpus_for(device: str) -> list[str]:
    """The GPUs to use, by number or UUID; none for a study on the CPU."""
    if device == "cpu":
        return []
    import torch

    number = torch.cuda.device_count() if torch.cuda.is_available() else 0
    visible = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(number)))).split(",")[:number]
    chosen = device.partition(":")[2]
    return visible[int(chosen) :][:1] if chosen else visible
