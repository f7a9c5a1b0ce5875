"""A split of a dataset: its images in order, their labels, and the array of them that a device can hold."""

import hashlib
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from transnet.data.cache import cached
from transnet.data.decode import RULES, decode_image, with_channels
from transnet.data.geometry import Geometry, Pixels, Size
from transnet.data.parallel import for_rows
from transnet.data.source import Rows
from transnet.data.stores import ArrayStore, Store
from transnet.errors import DataError

_BLOCK = 1024


class Split:
    """The images of one part of a dataset, with their labels; `open_data` creates them.

    Use `resident` if all images fit the device, `transnet.data.stream.stream` if they do not, and `decode` for a
    single image.

    Attributes:
        labels: int64 (N,), on the CPU.
        channels: 1 for grey images, 3 for colour.
        fingerprint: a hash of the contents of all images in their order, and of the labels.
    """

    def __init__(
        self, store: Store, rows: Rows, labels: Rows, hashes: Pixels, *, channels: int, decoded: Pixels | None = None
    ) -> None:
        self._store, self._rows, self._hashes, self._decoded = store, rows, hashes, decoded
        self.channels = channels
        self.labels: Tensor = torch.from_numpy(labels.astype(np.int64))
        self.fingerprint = hashlib.sha256(hashes.tobytes() + labels.astype("<i8").tobytes()).hexdigest()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_decoded": None}  # otherwise all pixels would be sent to worker processes

    def __len__(self) -> int:
        return len(self._rows)

    def where(self, i: int) -> str:
        """The image's path, or its shard and row, for a message about it."""
        return self._store.where(int(self._rows[i]))

    def decode(self, i: int) -> Pixels:
        """One whole image: uint8 (h, w, C), with as many channels as the dataset has.

        Raises:
            DataError: naming the image, if it can no longer be read.
        """
        return with_channels(self._store.pixels(int(self._rows[i])), self.channels)

    def resident_bytes(self, size: Size) -> int:
        """How much memory `resident` takes at that size; compare it with the device's free memory."""
        return len(self) * size[0] * size[1] * self.channels

    def resident(self, size: Size, *, progress: bool = True) -> Tensor:
        """All images as one uint8 tensor (N, height, width, C) on the CPU, to be copied to the device.

        Each image is resized to cover ``size``, then cut to the centre. The result is kept in the cache folder (see
        `transnet.data.cache`), unless the images already are an array of that size. Writing to the tensor does not
        change it.

        Raises:
            DataError: naming the image that can no longer be read, or the cache folder that cannot be written.
        """
        shape = (len(self), *size, self.channels)
        if isinstance(self._store, ArrayStore) and self._store.images.shape[1:] == shape[1:]:
            return torch.from_numpy(self._store.images[self._rows])
        decoded, self._decoded = self._decoded, None  # after this the cache has them

        def fill(path: Path) -> None:
            if decoded is None or decoded.shape[1:] != shape[1:]:
                work = partial(self._decode_rows, Geometry(size, size), path)
                return for_rows(work, len(self), title="decoding images", progress=progress)
            out = np.load(path, mmap_mode="r+")
            for start in range(0, len(self), _BLOCK):
                out[start : start + _BLOCK] = decoded[self._rows[start : start + _BLOCK]]

        digest = hashlib.sha256(f"resident {RULES} {size[0]}x{size[1]} {self.channels} ".encode())
        digest.update(self._hashes.tobytes())
        return torch.from_numpy(cached(digest.hexdigest(), shape, np.uint8, fill))

    def _decode_rows(self, geometry: Geometry, path: Path, start: int, stop: int) -> str | None:
        """Write some images into the ``.npy`` file at ``path``; runs in worker processes."""
        out = np.load(path, mmap_mode="r+")
        for i in range(start, stop):
            try:
                out[i] = geometry.fit(with_channels(self._checked_pixels(i), self.channels))
            except DataError as error:
                return f"{self.where(i)}: {error}"
        return None

    def _checked_pixels(self, i: int) -> Pixels:
        row = int(self._rows[i])
        if isinstance(self._store, ArrayStore):
            return self._store.pixels(row)
        encoded = self._store.encoded(row)
        # The cache entry's name is a hash of these contents: a file that was changed meanwhile must not be in it.
        if hashlib.sha256(encoded).digest() != self._hashes[i].tobytes():
            raise DataError("was changed while it was being read; start again when nothing writes to it")
        return decode_image(encoded)
