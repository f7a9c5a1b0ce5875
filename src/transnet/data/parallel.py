"""Work on many rows in worker processes, with a progress bar."""

import multiprocessing
import os
from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from transnet.console import progress_bar
from transnet.errors import DataError

T = TypeVar("T")
CHUNK = 64
# Starting processes costs more than this many small images.
_FEW = 512


def for_rows(work: Callable[[int, int], str | None], n: int, *, title: str, progress: bool) -> None:
    """Call ``work(start, stop)`` for consecutive parts of ``n`` rows; use it if the results are written to a file.

    Args:
        work: handles the rows from start to stop; returns None, or the text of an error. It is sent to the workers.
        n: number of rows.
        title: text in front of the progress bar.
        progress: whether to show the bar, if standard error is a terminal.

    Raises:
        DataError: with the first text that ``work`` returned.
    """
    starts = range(0, n, CHUNK)
    workers = workers_for(n)
    # No tensors are sent between the processes, so they cannot run out of shared memory.
    loader: DataLoader[str | None] = DataLoader(
        _Calls(work, n),
        batch_size=None,
        sampler=starts,
        num_workers=workers,
        collate_fn=unchanged,
        multiprocessing_context=start_method() if workers else None,
    )
    with progress_bar(shown=progress) as bar:
        task = bar.add_task(title, total=n)
        for start, error in zip(starts, loader):
            if error is not None:
                raise DataError(error)
            bar.advance(task, min(CHUNK, n - start))


def workers_for(n: int) -> int:
    """How many worker processes to use for ``n`` images: one for each usable core, none for few images."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # A daemonic process, such as a worker of another pool, may not have workers itself.
    none = n < _FEW or cores == 1 or multiprocessing.current_process().daemon
    return 0 if none else min(cores, n // CHUNK)


def start_method() -> str | None:
    """How to start worker processes, for a DataLoader; None is Python's default.

    A fork copies the locks of other threads as they are. The threads of a process group take Python's locks at any
    time, so a worker forked beside them now and then never starts: a fork server, which has no such threads, forks it.
    The server imports what all workers need; otherwise each would import torch for itself, in every epoch. (One that
    already runs is not changed.) Fork servers are Python's default on Linux from 3.14 on.
    """
    # `get_start_method()` without allow_none would fix the method, which only the program may do.
    default = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    grouped = dist.is_available() and dist.is_initialized()
    if default == "forkserver" or (default == "fork" and grouped):
        multiprocessing.set_forkserver_preload(["__main__", "transnet.data.stream"])
        return "forkserver"
    return None


def unchanged(value: T) -> T:
    """A collate function for datasets whose items are whole batches."""
    return value


class _Calls(Dataset[str | None]):
    def __init__(self, work: Callable[[int, int], str | None], n: int) -> None:
        self.work, self.n = work, n

    def __getitem__(self, start: int) -> str | None:
        return self.work(start, min(start + CHUNK, self.n))
