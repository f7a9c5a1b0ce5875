"""A dataset and its splits: images that are held in memory, or decoded by worker processes while training runs."""

import hashlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader

from transnet.console import progress_bar
from transnet.data.cache import cached
from transnet.data.pixels import RULES, Geometry, Pixels, Size, decode_image, with_channels
from transnet.data.source import ArrayStore, Rows, Store, load_pixels, read_encoded
from transnet.errors import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")

_CHUNK = 64
# Starting processes costs more than this many small images.
_FEW = 512
_GRACE = 20  # seconds that a worker continues after SIGTERM


class Split:
    """The images of one part of a dataset, with their labels.

    Use `resident` if all images fit the device, `stream` if they do not, and `decode` for a
    single image.
    """

    def __init__(
        self, store: Store, rows: Rows, labels: Rows, hashes: Pixels, *, channels: int, decoded: Pixels | None = None
    ) -> None:
        self._store, self._rows, self._hashes, self._decoded = store, rows, hashes, decoded
        self.channels = channels  # 1 for grey images, 3 for colour
        self.labels: Tensor = torch.from_numpy(labels.astype(np.int64))  # (N,), on the CPU
        # Of the contents of all images in their order, and of the labels.
        self.fingerprint = hashlib.sha256(hashes.tobytes() + labels.astype("<i8").tobytes()).hexdigest()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_decoded": None}  # otherwise all pixels would be sent to worker processes

    def __len__(self) -> int:
        return len(self._rows)

    def where(self, i: int) -> str:
        """The image's path, or its shard and row, for a message about it."""
        return self._store.where(int(self._rows[i]))

    def decode(self, i: int) -> Pixels:
        """One whole image: uint8 (h, w, C), with as many channels as the dataset has."""
        return with_channels(load_pixels(self._store, int(self._rows[i])), self.channels)

    def resident_bytes(self, size: Size) -> int:
        """How much memory `resident` takes at that size; compare it with the device's free memory."""
        return len(self) * size[0] * size[1] * self.channels

    def resident(self, size: Size, *, progress: bool = True) -> Tensor:
        """All images as one uint8 tensor (N, height, width, C) on the CPU, to be copied to the device.

        Each image is resized to cover ``size``, then cut to the centre. The result is kept in the cache folder, unless
        the images already are an array of that size.
        """
        shape = (len(self), *size, self.channels)
        if isinstance(self._store, ArrayStore) and self._store.images.shape[1:] == shape[1:]:
            return torch.from_numpy(self._store.images[self._rows])
        decoded, self._decoded = self._decoded, None  # after this the cache has them

        def fill(path: Path) -> None:
            if decoded is not None and decoded.shape[1:] == shape[1:]:
                # Any mode but "raise" writes without a copy in memory.
                np.take(decoded, self._rows, axis=0, out=np.load(path, mmap_mode="r+"), mode="clip")
            else:
                work = partial(self._decode_rows, Geometry(size, size), path)
                for_rows(work, len(self), title="decoding images", progress=progress)

        digest = hashlib.sha256(f"resident {RULES} {size[0]}x{size[1]} {self.channels} ".encode())
        digest.update(self._hashes.tobytes())
        return torch.from_numpy(cached(digest.hexdigest(), shape, np.uint8, fill))

    def _decode_rows(self, geometry: Geometry, path: Path, part: range) -> str | None:
        """Write some images into the ``.npy`` file at ``path``; runs in worker processes."""
        out = np.load(path, mmap_mode="r+")
        for i in part:
            try:
                if isinstance(self._store, ArrayStore):
                    pixels = self.decode(i)
                else:
                    encoded = read_encoded(self._store, int(self._rows[i]))
                    # The cache entry's name is a hash of these contents: a file that was changed must not be in it.
                    if hashlib.sha256(encoded).digest() != self._hashes[i].tobytes():
                        raise DataError("was changed while it was being read; start again when nothing writes to it")
                    pixels = with_channels(decode_image(encoded), self.channels)
                out[i] = geometry.fit(pixels)
            except DataError as error:
                return f"{self.where(i)}: {error}"
        return None


@dataclass(frozen=True)
class DataSet:
    """Images in their splits, and how a network sees them; `transnet.data.open_data` creates one."""

    name: str  # as given, or that of the folder or file
    classes: tuple[str, ...]
    channels: int  # 1 if all images are grey, otherwise 3
    geometry: Geometry
    flip: bool  # whether training flips images left-right; a flipped digit would be no digit
    square: bool  # whether all images are square; of others the network sees the centre square
    mean: tuple[float, ...]  # of each channel in 0…1, over the training images before resizing
    std: tuple[float, ...]
    train: Split
    val: Split | None  # to select on
    test: Split  # to measure on, and for nothing else
    skipped: tuple[str, ...]  # the images that were left out because they could not be read
    fingerprint: str  # of the images, labels, splits and of how a network sees them: equal if the data is the same

    @property
    def image_size(self) -> int:
        """Side of the square that the network sees."""
        return self.geometry.size[0]


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
    split: Split, batches: Sequence[Tensor], geometry: Geometry, *, crops: Tensor | None, workers: int, pin: bool
) -> Generator[Tensor]:
    """Decode batches ahead of their use; use it if `Split.resident` is too large.

    Each batch of indices gives uint8 pixels (B, height, width, C), equal to crops of the resident images. ``crops`` has
    a row of `Plan.crop` for each index, in the order of the batches; None gives centre crops. ``pin`` delivers pinned
    memory, from which copies to a GPU are asynchronous.
    """
    lengths = [len(batch) for batch in batches]
    middle = torch.tensor([(stored - size) // 2 for stored, size in zip(geometry.stored, geometry.size)])
    corners = middle.expand(sum(lengths), 2) if crops is None else torch.stack(geometry.corners(crops), 1)
    # Arrays, because every tensor would be sent to the workers through a file descriptor.
    items = [(batch.numpy(), part.numpy()) for batch, part in zip(batches, corners.split(lengths))]
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
        multiprocessing.set_forkserver_preload(["__main__", "transnet.data.dataset"])
        return "forkserver"
    return None


def _decode_batch(split: Split, geometry: Geometry, item: tuple[Rows, Rows]) -> Tensor | str:
    """One batch, or the text of an error: an exception from a worker would carry its traceback."""
    (height, width), (indices, corners) = geometry.size, item
    out = np.empty((len(indices), height, width, split.channels), np.uint8)
    try:
        for image, i, (top, left) in zip(out, indices, corners):
            image[:] = geometry.fit(split.decode(int(i)))[top : top + height, left : left + width]
    except DataError as error:
        return str(error)
    return torch.from_numpy(out)


def _ignore_interrupts(_worker: int) -> None:
    """Let a worker survive Ctrl-C and a scheduler's signal: the training process saves its state, then ends it."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()
        signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_GRACE) and None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
