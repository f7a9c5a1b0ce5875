"""Batches that are decoded while training runs, for datasets that do not fit the device."""

import os
import signal
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from transnet.data.geometry import Geometry
from transnet.data.parallel import start_method, unchanged
from transnet.data.split import Split
from transnet.errors import DataError

_GRACE = 20  # seconds that a worker continues after SIGTERM


def stream(
    split: Split, batches: Sequence[Tensor], geometry: Geometry, *, crops: Tensor | None, workers: int, pin: bool
) -> Generator[Tensor]:
    """Decode batches in worker processes ahead of their use; use it if `Split.resident` is too large.

    The same arguments give the same pixels for any number of workers, because all randomness is in ``crops``. They are
    the pixels that `transnet.data.augment.View` crops from the resident images.

    Args:
        split: the images.
        batches: for each batch the indices of its images.
        geometry: the stored size and the size to crop; see `Geometry.streamed` for training.
        crops: as in `Plan.crop`, one row per index in all batches, in the order of the batches; None: centre crops.
        workers: processes; 0 decodes in this one.
        pin: deliver pinned memory, from which copies to a GPU are asynchronous.

    Yields:
        uint8 (B, height, width, C), one tensor per batch, in their order.

    Raises:
        DataError: naming the image that cannot be read.
    """
    n = sum(len(batch) for batch in batches)
    if crops is not None and tuple(crops.shape) != (n, 2):
        raise ValueError(f"crops has shape {tuple(crops.shape)}; {n} images need ({n}, 2)")
    return _stream(_Batches(split, batches, geometry, crops), workers, pin)


def _stream(batches: "_Batches", workers: int, pin: bool) -> Generator[Tensor]:
    loader: DataLoader[Tensor | str] = DataLoader(
        batches,
        batch_size=None,
        sampler=range(len(batches.indices)),
        num_workers=workers,
        prefetch_factor=2 if workers else None,
        pin_memory=pin,
        collate_fn=unchanged,
        worker_init_fn=_ignore_interrupts,
        multiprocessing_context=start_method() if workers else None,
    )
    with _blocked(signal.SIGTERM):
        decoded = iter(loader)
    for batch in decoded:
        if isinstance(batch, str):
            raise DataError(batch)
        yield batch


class _Batches(Dataset[Tensor | str]):
    """Batch k, or the text of an error: an exception from a worker would carry its traceback."""

    def __init__(self, split: Split, batches: Sequence[Tensor], geometry: Geometry, crops: Tensor | None) -> None:
        self.split, self.geometry = split, geometry
        # Arrays, because every tensor would be sent to the workers through a file descriptor.
        self.indices = [batch.numpy() for batch in batches]
        self.starts = np.cumsum([0, *map(len, self.indices)])
        self.corners = None if crops is None else torch.stack(geometry.corners(crops), 1).numpy()

    def __getitem__(self, k: int) -> Tensor | str:
        (height, width), indices = self.geometry.size, self.indices[k]
        out = np.empty((len(indices), height, width, self.split.channels), np.uint8)
        for j, i in enumerate(indices):
            try:
                pixels = self.geometry.fit(self.split.decode(int(i)))
            except DataError as error:
                return str(error)
            if self.corners is None:
                out[j] = self.geometry.centre(pixels)
            else:
                top, left = self.corners[self.starts[k] + j]
                out[j] = pixels[top : top + height, left : left + width]
        return torch.from_numpy(out)


@contextmanager
def _blocked(number: signal.Signals) -> Iterator[None]:
    """Block a signal meanwhile; processes that are started in the block keep it blocked until they unblock it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ignore_interrupts(_worker: int) -> None:
    """Let a worker survive Ctrl-C and a scheduler's signal to all processes.

    The process that trains saves its state first and then ends the worker.
    """
    if hasattr(os, "setpgrp"):
        os.setpgrp()
        signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_GRACE) and None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
