"""One function over many rows, on worker processes, with a progress bar."""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader, Dataset

from transnet.errors import DataError

CHUNK = 64
# Starting processes costs more than this many small images.
_ALONE = 512


def for_rows(work: Callable[[int, int], str | None], n: int, *, title: str, progress: bool) -> None:
    """Call ``work(start, stop)`` until all ``n`` rows are done; use it where rows are written to a file.

    Args:
        work: does the rows from start to stop and returns None, or what went wrong. It travels to the
            workers.
        n: the number of rows.
        title: says what is being done, in front of the bar.
        progress: show the bar, where standard error is a terminal.

    Raises:
        DataError: with the first thing that went wrong.
    """
    starts = range(0, n, CHUNK)
    if workers := workers_for(n):
        import_once()
    # No tensors travel between the processes, so there is no shared memory to run out of.
    loader: DataLoader[Any] = DataLoader(
        _Calls(work, n), batch_size=None, sampler=starts, num_workers=workers, collate_fn=_unchanged
    )
    with bar(title, n, shown=progress) as advance:
        for start, error in zip(starts, loader):
            if error is not None:
                raise DataError(error)
            advance(min(CHUNK, n - start))


def workers_for(n: int) -> int:
    """How many worker processes to use for ``n`` images: one for each usable core, none for few images."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # A worker of somebody else's pool may not have workers of its own.
    alone = n < _ALONE or cores == 1 or multiprocessing.current_process().daemon
    return 0 if alone else min(cores, n // CHUNK)


def import_once() -> None:
    """Where worker processes come from a fork server, let that import what all of them need; call it before they start.

    Otherwise each imports torch for itself, one after the other: seconds a worker, every epoch. The server is Python's
    own choice on Linux from 3.14 on. One that already runs stays as it is; else this list replaces any other.
    """
    # Not `get_start_method()` alone, which would settle it: that is for the program to do.
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    if method == "forkserver":
        multiprocessing.set_forkserver_preload(["__main__", "transnet.data.stream"])


@contextmanager
def bar(title: str, total: int, *, shown: bool, unit: str = "images") -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error that leaves nothing behind; silent where that is not a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    counter = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), counter, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as progress:
        task = progress.add_task(title, total=total or None)
        yield lambda steps: progress.advance(task, steps)


class _Calls(Dataset[str | None]):
    def __init__(self, work: Callable[[int, int], str | None], n: int) -> None:
        self.work, self.n = work, n

    def __getitem__(self, start: int) -> str | None:
        return self.work(start, min(start + CHUNK, self.n))


def _unchanged(value: Any) -> Any:
    return value
