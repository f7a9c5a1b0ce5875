"""Batches decoded while training runs, for data sets that do not fit the device."""

import os
import signal
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from transnet.data.decode import square
from transnet.data.parallel import import_once
from transnet.data.split import Split
from transnet.errors import DataError

_GRACE = 20  # seconds that a worker goes on for after SIGTERM


def stream(
    split: Split,
    batches: Sequence[Tensor],
    *,
    stored_size: int,
    image_size: int,
    crops: Tensor | None,
    workers: int,
    pin: bool,
) -> Generator[Tensor]:
    """Decode batches on worker processes ahead of their use, where ``Split.resident`` is too large.

    The same arguments give the same pixels whatever the number of workers: chance comes in as ``crops``. They are
    those that `transnet.data.augment.View` cuts out of the resident images.

    Args:
        split: the images.
        batches: for each batch the indices of its images.
        stored_size: shorter sides are resized to this, then the centre square is taken.
        image_size: side of the smaller square that is cut out of that.
        crops: in [0, 1), (number of indices in all batches, 2), in the order of the batches: where each smaller
            square lies in its larger one, as shares of the rows and columns it can begin at. None: centre.
        workers: processes; 0 decodes in this one.
        pin: give pinned memory, from which a copy to a GPU need not be waited for.

    Yields:
        uint8 (B, image_size, image_size, C), one tensor for each batch, in their order.

    Raises:
        DataError: naming the image that cannot be read, or what does not fit in the arguments.
    """
    lengths = [len(batch) for batch in batches]
    if image_size > stored_size:
        raise DataError(f"image_size {image_size} is larger than stored_size {stored_size}; it must fit into it")
    if crops is not None and tuple(crops.shape) != (sum(lengths), 2):
        raise DataError(f"crops has shape {tuple(crops.shape)}; {sum(lengths)} images need ({sum(lengths)}, 2)")
    room = stored_size - image_size
    if crops is None:
        corners = torch.full((sum(lengths), 2), room // 2)
    else:  # in single precision, as the device does it, or now and then a crop would be a pixel off
        corners = (crops.float() * (room + 1)).long().clamp(max=room)
    return _stream(_Batches(split, batches, stored_size, image_size, corners), workers, pin)


def _stream(batches: "_Batches", workers: int, pin: bool) -> Generator[Tensor]:
    if workers:
        import_once()
    loader: DataLoader[Any] = DataLoader(
        batches,
        batch_size=None,
        sampler=range(len(batches.indices)),
        num_workers=workers,
        prefetch_factor=2 if workers else None,
        pin_memory=pin,
        collate_fn=_unchanged,
        worker_init_fn=_stand_apart,
    )
    with _held_back(signal.SIGTERM):
        found = iter(loader)
    for batch in found:
        if isinstance(batch, str):
            raise DataError(batch)
        yield batch


class _Batches(Dataset[Tensor | str]):
    """Batch k, or what is wrong with it: an exception from a worker would carry its traceback."""

    def __init__(
        self, split: Split, batches: Sequence[Tensor], stored_size: int, image_size: int, corners: Tensor
    ) -> None:
        self.split, self.stored_size, self.image_size = split, stored_size, image_size
        # Arrays, because tensors would travel to the workers one file descriptor each.
        self.indices = [batch.numpy() for batch in batches]
        self.starts = np.cumsum([0, *map(len, self.indices)])
        self.corners = corners.numpy()

    def __getitem__(self, k: int) -> Tensor | str:
        side, indices = self.image_size, self.indices[k]
        out = np.empty((len(indices), side, side, self.split.channels), np.uint8)
        for j, i in enumerate(indices):
            try:
                pixels = square(self.split.decode(int(i)), self.stored_size)
            except DataError as error:
                return str(error)
            top, left = self.corners[self.starts[k] + j]
            out[j] = pixels[top : top + side, left : left + side]
        return torch.from_numpy(out)


def _unchanged(value: Any) -> Any:
    return value


@contextmanager
def _held_back(number: signal.Signals) -> Iterator[None]:
    """While the block lasts, the signal waits; in processes that are started meanwhile, until they let it through."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stand_apart(_worker: int) -> None:
    """Stay out of Ctrl-C and a scheduler's signal to all: the process that trains saves first, and ends this one."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()
        signal.signal(signal.SIGTERM, _end_later)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _end_later(*_: Any) -> None:
    signal.alarm(_GRACE)
