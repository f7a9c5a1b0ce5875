"""One run of a study in a process of its own, which ends with the process that started it, its state saved."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from transnet.runs.config import TrainConfig
from transnet.runs.records import Result

STOPPED = 3  # exit status of a run that was asked to stop and saved its state
TOLD = "it was told to stop; its state is saved"


def train_alone(config: TrainConfig, data: str, at_once: int = 1) -> Result:
    """Train a run, or go on with it, on the data that lies there, while no other process does so.

    A process that was given up, because its machine seemed dead, may still be writing: two must never share a folder.
    """
    from transnet.study.answers import is_member, keep_answers
    from transnet.train.evaluate_runs import own_data
    from transnet.train.trainer import train

    folder = Path(config.out)
    with _lock(folder):
        result = train(config, data=data, quiet=True, at_once=at_once)
        if is_member(folder):
            try:
                keep_answers(folder, own_data(folder, at=data), device=config.device)
            except Exception as error:  # such as for want of memory; the run is finished, and the report tries again
                print(f"{folder.name}: what it says of the test images could not be kept: {error}", file=sys.stderr)
    return result


def work(config: TrainConfig, data: str, log: Path, environment: dict[str, str], threads: int, at_once: int) -> None:
    """What a run's process does. Exit status: 0 finished, 3 stopped, 1 failed, with the reason as the log's last line.

    Args:
        config: the run.
        data: where its data lies.
        log: where everything goes that is said.
        environment: set before anything looks at it, such as the GPU to use.
        threads: of the CPU.
        at_once: runs that may share its device.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the process that forked this one ignores it
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until it trains: to be stopped earlier is no failure
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # it may have come while the process began
    os.setsid()  # Ctrl-C in the terminal reaches the study alone, which asks each run once
    with open(log, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(environment)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Its data workers start by Python's default, as those of a run alone do, not by a fork server of their own.
    multiprocessing.set_start_method(None, force=True)
    import torch

    from transnet.train.interrupt import Stopped
    from transnet.train.state import TrainingError

    torch.set_num_threads(threads)
    try:
        train_alone(config, data, at_once)
    except Stopped:
        sys.exit(STOPPED)
    except (ValueError, OSError, TrainingError) as error:
        print(error, file=sys.stderr)
        sys.exit(1)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Wait for the run's turn, however long: its folder's own lock gives up after half a minute."""
    from filelock import FileLock

    locks = folder.parent.parent / "logs"
    locks.mkdir(parents=True, exist_ok=True)
    lock = FileLock(locks / f"{folder.name}.lock")
    with suppress(NotImplementedError, OSError):  # a file system without locks
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
