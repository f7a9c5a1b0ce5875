"""One run of a study in a process of its own, which ends with the process that started it, its state saved."""

import multiprocessing
import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from transnet.errors import OperationError, TransnetError
from transnet.runs.folder import Run, RunInUse
from transnet.study.plan import PlannedRun

STOPPED, BUSY = 3, 4  # exit statuses: asked to stop, its state is saved; another process trains the run


@dataclass(frozen=True)
class Ended:
    """A run that is not being trained any more.

    Attributes:
        name: the run's.
        error: why it failed; empty if it did not.
        stopped: it was asked to stop, and its state is saved.
        busy: another process trains it.
    """

    name: str
    error: str = ""
    stopped: bool = False
    busy: bool = False


def train_run(run: PlannedRun, at_once: int) -> None:
    """Train a run, or continue it, and save its predictions if the study wants them.

    Args:
        run: the run.
        at_once: runs that may share its device.

    Raises:
        RunInUse: if another process trains it.
    """
    from transnet.train.evaluate_runs import save_predictions
    from transnet.train.trainer import train

    folder = Run(run.path)
    folder.acquire(timeout=0)
    try:
        train(run.config, data=run.data, quiet=True, at_once=at_once)
        if not run.done:
            save_predictions(run.path, data=run.data, device=run.config.device)
    finally:
        folder.release()
        if folder.finished:
            folder.drop_state()  # it holds only the lock's file


def work(run: PlannedRun, log: Path, environment: dict[str, str], threads: int, at_once: int) -> None:
    """The process of a run. Exit status: 0 finished, `STOPPED`, `BUSY`, or 1 with the reason as the log's last line.

    Args:
        run: the run.
        log: file for everything that is printed.
        environment: set before any library reads it, such as the GPU to use.
        threads: CPU threads.
        at_once: runs that may share its device.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the process that forked this one ignores it
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until it trains: being stopped earlier is no failure
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # it may have arrived while the process began
    os.setsid()  # Ctrl-C in the terminal reaches only the study, which asks each run once
    with open(log, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(environment)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Its data workers start by Python's default, as those of a single run do, and not by a fork server of their own.
    multiprocessing.set_start_method(None, force=True)
    import torch

    from transnet.train.interrupt import Stopped

    torch.set_num_threads(threads)
    try:
        train_run(run, at_once)
    except Stopped:
        sys.exit(STOPPED)
    except RunInUse:
        sys.exit(BUSY)
    except (TransnetError, OperationError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
