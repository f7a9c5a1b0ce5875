"""Decode images in worker processes: once for the cache, or while training runs if they do not fit the device."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader

from transnet.console import progress_bar
from transnet.data.pixels import Geometry
from transnet.errors import DataError

if TYPE_CHECKING:
    from transnet.data.dataset import Split

Item = TypeVar("Item")
Result = TypeVar("Result")
Indices = npt.NDArray[np.int64]

_CHUNK = 64
# Starting processes costs more than this many small images.
_FEW = 512
_GRACE = 20  # seconds that a worker continues after SIGTERM


def for_rows(work: Callable[[range], str | None], n: int, *, title: str, progress: bool) -> None:
    """Call ``work`` for consecutive ranges of ``n`` rows, in worker processes if there are many.

    ``work`` writes to a file, because shared memory might run out. It returns None, or the text of a DataError.
    """
    parts = [range(n)[start : start + _CHUNK] for start in range(0, n, _CHUNK)]
    with progress_bar(shown=progress) as bar:
        task = bar.add_task(title, total=n)
        for part, error in zip(parts, _loader(work, parts, workers_for(n))):
            if error is not None:
                raise DataError(error)
            bar.advance(task, len(part))


def stream(
    split: "Split", batches: Sequence[Tensor], geometry: Geometry, *, crops: Tensor | None, workers: int, pin: bool
) -> Generator[Tensor]:
    """Decode batches ahead of their use; use it if `Split.resident` is too large.

    Each batch of indices gives uint8 pixels (B, height, width, C), equal to crops of the resident images. ``crops`` has
    a row of `Plan.crop` for each index, in the order of the batches; None gives centre crops. ``pin`` delivers pinned
    memory, from which copies to a GPU are asynchronous.
    """
    # Arrays, because every tensor would be sent to the workers through a file descriptor.
    items: list[tuple[Indices, Indices | None]] = [(batch.numpy(), None) for batch in batches]
    if crops is not None:
        corners = torch.stack(geometry.corners(crops), 1).split([len(batch) for batch in batches])
        items = [(batch.numpy(), part.numpy()) for batch, part in zip(batches, corners)]
    work = partial(_decode_batch, split, geometry)
    loader = _loader(work, items, workers, pin_memory=pin, worker_init_fn=_ignore_interrupts)
    # The workers start with SIGTERM blocked, until they can handle it.
    masks = hasattr(signal, "pthread_sigmask")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}) if masks else set()
    try:
        decoded = iter(loader)
    finally:
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    for batch in decoded:
        if isinstance(batch, str):
            raise DataError(batch)
        yield batch


def workers_for(n: int) -> int:
    """How many worker processes to use for ``n`` images: one for each usable core, none for few images."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # A daemonic process, such as a worker of another pool, may not have workers itself.
    none = n < _FEW or cores == 1 or multiprocessing.current_process().daemon
    return 0 if none else min(cores, n // _CHUNK)


def _loader(work: Callable[[Item], Result], items: Sequence[Item], workers: int, **options: Any) -> DataLoader[Result]:
    """A loader that yields ``work(item)`` for each item, in order."""
    options |= {"num_workers": workers, "multiprocessing_context": _start_method() if workers else None}
    # With batch_size None, the collate function gets single items.
    return DataLoader(items, batch_size=None, collate_fn=work, **options)  # type: ignore[arg-type]


def _start_method() -> str | None:
    """How to start worker processes, for a DataLoader; None is Python's default.

    A worker that is forked beside the threads of a process group may never start, because a fork copies the locks that
    these threads hold. A fork server has no such threads. It imports what all workers need; otherwise each worker would
    import torch itself, in every epoch.
    """
    # `get_start_method()` without allow_none would fix the method, which only the program may do.
    default = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    grouped = dist.is_available() and dist.is_initialized()
    if default == "forkserver" or (default == "fork" and grouped):
        multiprocessing.set_forkserver_preload(["__main__", "transnet.data.stream"])
        return "forkserver"
    return None


def _decode_batch(split: "Split", geometry: Geometry, item: tuple[Indices, Indices | None]) -> Tensor | str:
    """One batch, or the text of an error: an exception from a worker would carry its traceback."""
    (height, width), (indices, corners) = geometry.size, item
    out = np.empty((len(indices), height, width, split.channels), np.uint8)
    for j, i in enumerate(indices):
        try:
            pixels = geometry.fit(split.decode(int(i)))
        except DataError as error:
            return str(error)
        if corners is None:
            out[j] = geometry.centre(pixels)
        else:
            top, left = corners[j]
            out[j] = pixels[top : top + height, left : left + width]
    return torch.from_numpy(out)


def _ignore_interrupts(_worker: int) -> None:
    """Let a worker survive Ctrl-C and a scheduler's signal: the training process saves its state, then ends it."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()
        signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_GRACE) and None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
