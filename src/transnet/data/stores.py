"""Access to images by row: files, one array of encoded images, or an array of pixels.

Stores are sent to worker processes, so they hold no open files and few Python objects.
"""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transnet.data.decode import ReadError, decode_image
from transnet.data.geometry import Pixels
from transnet.errors import DataError


class EncodedStore(ABC):
    """Images as the bytes of image files, which have to be decoded."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def key(self) -> str:
        """A hash that changes if any image may have changed; cheap, so it may also change without need."""

    @abstractmethod
    def where(self, row: int) -> str:
        """The image's path, or its shard and row, for a message."""

    @abstractmethod
    def encoded(self, row: int) -> bytes:
        """The image file's bytes; raises a ReadError with the reason only if they cannot be read."""

    def pixels(self, row: int, *, check: bool = False) -> Pixels:
        """The whole image, (h, w, 1) or (h, w, 3); raises a DataError that names it if it cannot be read."""
        try:
            return decode_image(self.encoded(row), check=check)
        except DataError as error:
            raise DataError(f"{self.where(row)}: {error}") from error


class FileStore(EncodedStore):
    """Images that are separate files.

    Args:
        root: the folder that contains them.
        paths: relative to it.
    """

    def __init__(self, root: Path, paths: Sequence[str]) -> None:
        self.root = root
        # An array, not a list: forked workers that touch a million strings would copy them all.
        self._paths = np.array([os.fsencode(path) for path in paths])

    def __len__(self) -> int:
        return len(self._paths)

    def path(self, row: int) -> Path:
        """The file of that row."""
        return self.root / os.fsdecode(bytes(self._paths[row]))

    def where(self, row: int) -> str:
        """The file's path."""
        return str(self.path(row))

    @property
    def key(self) -> str:
        """From names, sizes and times, so that changed permissions count as well as changed contents."""
        digest = hashlib.sha256(os.fsencode(self.root.resolve()))
        for row in range(len(self)):
            try:
                stat = self.path(row).stat()
                state = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
            except OSError as error:
                state = (-1, error.errno or 0, 0)
            digest.update(bytes(self._paths[row]) + f"\0{state}\n".encode())
        return digest.hexdigest()

    def encoded(self, row: int) -> bytes:
        """The file's contents."""
        try:
            return self.path(row).read_bytes()
        except (OSError, MemoryError) as error:
            raise ReadError(f"cannot be read ({_reason(error)})") from error


class PackedStore(EncodedStore):
    """Encoded images one after another in one file, to which parquet shards are unpacked.

    Args:
        packed: the file.
        start: of the first image in it.
        ends: of each image, from there.
        key: see `EncodedStore.key`.
        shards: their names and numbers of rows, in order.
    """

    def __init__(
        self, packed: Path, start: int, ends: npt.NDArray[np.int64], key: str, shards: Sequence[tuple[str, int]]
    ) -> None:
        self._packed, self._start, self._ends, self._key, self._shards = packed, start, ends, key, list(shards)

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def key(self) -> str:
        """From the shards' names, sizes and times."""
        return self._key

    def where(self, row: int) -> str:
        """The shard and the row in it."""
        for name, rows in self._shards:
            if row < rows:
                return f"{name}, row {row}"
            row -= rows
        raise IndexError(row)

    def encoded(self, row: int) -> bytes:
        """The bytes of that image."""
        begin = int(self._ends[row - 1]) if row else 0
        length = int(self._ends[row]) - begin
        try:
            with open(self._packed, "rb") as file:
                file.seek(self._start + begin)
                return file.read(length)
        except (OSError, MemoryError) as error:
            raise ReadError(f"cannot be read from {self._packed} ({_reason(error)}); start again") from error


class ArrayStore:
    """Images of one size that are pixels in memory: uint8 (N, H, W, C).

    Args:
        images: the pixels.
        name: of the array, for messages.
    """

    def __init__(self, images: Pixels, name: str) -> None:
        self.images, self._name = images, name

    def __len__(self) -> int:
        return len(self.images)

    def where(self, row: int) -> str:
        """The array's name and the row."""
        return f"{self._name}, image {row}"

    def pixels(self, row: int, *, check: bool = False) -> Pixels:
        """The image."""
        return self.images[row]


Store = EncodedStore | ArrayStore


def _reason(error: OSError | MemoryError) -> str:
    return "not enough memory" if isinstance(error, MemoryError) else error.strerror or str(error)
