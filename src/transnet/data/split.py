"""A part of a data set: its images in order, their labels, and the array of them that a device can hold."""

import hashlib

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from transnet.data.decode import Pixels, with_channels
from transnet.data.resident import resident_array
from transnet.data.stores import Store
from transnet.errors import DataError

Rows = npt.NDArray[np.int64]


class Split:
    """The images of one part of a data set, with their labels; `open_data` makes them.

    Take `resident` where all images fit the device, `transnet.data.stream.stream` where they do
    not, and `decode` to look at one.

    Attributes:
        labels: int64 (N,), on the CPU.
        fingerprint: a hash of the contents of all images in their order, and of the labels.
    """

    def __init__(self, store: Store, rows: Rows, labels: Rows, hashes: Pixels, *, channels: int) -> None:
        self._store, self._rows, self._hashes = store, rows, hashes
        self.channels = channels
        self.labels: Tensor = torch.from_numpy(labels.astype(np.int64))
        self.fingerprint = hashlib.sha256(hashes.tobytes() + labels.astype("<i8").tobytes()).hexdigest()

    def __len__(self) -> int:
        return len(self._rows)

    def where(self, i: int) -> str:
        """The image's path, or its shard and row, for a message about it."""
        return self._store.where(int(self._rows[i]))

    def decode(self, i: int) -> Pixels:
        """One whole image: uint8 (h, w, C), with as many channels as the data set has.

        Raises:
            DataError: naming the image, where it can no longer be read.
        """
        pixels = self._store.pixels(int(self._rows[i]))
        try:
            return with_channels(pixels, self.channels)
        except DataError as error:
            raise DataError(f"{self.where(i)}: {error}") from error

    def resident_bytes(self, size: int) -> int:
        """How much memory `resident` takes at that size: compare it with what the device has free."""
        return len(self) * size * size * self.channels

    def resident(self, size: int, *, progress: bool = True) -> Tensor:
        """All images as one uint8 tensor (N, size, size, C) on the CPU, to be copied to the device.

        Shorter sides are resized to ``size``, then the centre square is taken. The images are decoded once,
        on all cores, and kept in the cache folder (see `transnet.data.cache`); writing to the tensor
        changes neither.

        Raises:
            DataError: naming the image that can no longer be read, or the cache folder that cannot be
                written.
        """
        return torch.from_numpy(
            resident_array(self._store, self._rows, self._hashes, channels=self.channels, size=size, progress=progress)
        )


def cut(labels: Rows, hashes: Pixels, fraction: float, seed: int | str) -> npt.NDArray[np.bool_]:
    """Mark a stratified ``fraction`` of the images: of every class its share, at least one and never all.

    Which ones follows from the images' contents and the seed alone. So the cut is the same on every machine
    and for every order of the files, and an added image moves few others.

    Args:
        labels: one a row.
        hashes: sha256 of each image, (N, 32).
        fraction: the share to mark, in (0, 1).
        seed: another seed marks others.

    Returns:
        True for the marked rows. A class with one image has none.
    """
    lot = np.array([hashlib.sha256(f"{seed} ".encode() + sha.tobytes()).digest() for sha in hashes], dtype="S32")
    marked = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        count = min(max(1, round(fraction * len(rows))), len(rows) - 1)
        marked[rows[np.argsort(lot[rows], kind="stable")[:count]]] = True
    return marked
