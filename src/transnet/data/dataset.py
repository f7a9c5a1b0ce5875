"""A dataset and its splits, as training and evaluation see them."""

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from transnet.data.cache import cached
from transnet.data.pixels import RULES, Geometry, Pixels, Size, decode_image, with_channels
from transnet.data.source import ArrayStore, Rows, Store, load_pixels, read_encoded
from transnet.data.stream import for_rows
from transnet.errors import DataError


class Split:
    """The images of one part of a dataset, with their labels.

    Use `resident` if all images fit the device, `transnet.data.stream.stream` if they do not, and `decode` for a
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
