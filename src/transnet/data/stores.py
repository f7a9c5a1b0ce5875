"""Where images lie: in files, in one long run of encoded bytes, or in an array of pixels.

A store knows its images by row and travels to worker processes, so it holds no open files and few Python
objects.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from transnet.data.decode import Pixels, decode_image
from transnet.data.errors import ReadError
from transnet.errors import DataError


class Store(Protocol):
    """Images by row, each read when it is asked for."""

    def __len__(self) -> int: ...

    def pixels(self, row: int) -> Pixels:
        """The whole image, (h, w, 1) or (h, w, 3); raises DataError, naming it, where it cannot be read."""
        ...

    def where(self, row: int) -> str:
        """The image's path, or whatever else finds it, for a message."""
        ...


class EncodedStore(Store, Protocol):
    """A store of image files' bytes, which have to be decoded."""

    @property
    def key(self) -> str:
        """A hash that changes when any image may have changed; cheap, so it may change without need."""
        ...

    def encoded(self, row: int) -> bytes:
        """The image file's bytes; the ReadError where they cannot be read gives the reason only."""
        ...


class FileStore:
    """Images that are files of their own."""

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
        """From names, sizes and times: permissions and contents both count."""
        digest = hashlib.sha256(os.fsencode(self.root.resolve()))
        for row in range(len(self)):
            try:
                stat = self.path(row).stat()
                seen = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
            except OSError as error:
                seen = (-1, error.errno or 0, 0)
            digest.update(bytes(self._paths[row]) + f"\0{seen}\n".encode())
        return digest.hexdigest()

    def encoded(self, row: int) -> bytes:
        """The file's contents."""
        try:
            return self.path(row).read_bytes()
        except (OSError, MemoryError) as error:
            raise ReadError(f"cannot be read ({_reason(error)})") from error

    def pixels(self, row: int) -> Pixels:
        """The decoded file."""
        return decoded(self, row)


class PackedStore:
    """Encoded images one after another in one array, such as parquet shards are unpacked to."""

    def __init__(
        self,
        packed: Path,
        start: int,
        ends: npt.NDArray[np.int64],
        key: str,
        shards: Sequence[tuple[str, int]],
    ) -> None:
        self._packed, self._start, self._ends, self.key, self._shards = packed, start, ends, key, list(shards)

    def __len__(self) -> int:
        return len(self._ends)

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

    def pixels(self, row: int) -> Pixels:
        """The decoded image."""
        return decoded(self, row)


class ArrayStore:
    """Images of one size that are pixels in memory: uint8 (N, H, W, C)."""

    def __init__(self, images: Pixels, name: str) -> None:
        self.images, self._name = images, name

    def __len__(self) -> int:
        return len(self.images)

    def where(self, row: int) -> str:
        """The array's name and the row."""
        return f"{self._name}, image {row}"

    def pixels(self, row: int) -> Pixels:
        """The image."""
        return self.images[row]


def decoded(store: EncodedStore, row: int) -> Pixels:
    """Read and decode one image of a store; an error names it."""
    try:
        return decode_image(store.encoded(row))
    except DataError as error:
        raise DataError(f"{store.where(row)}: {error}") from error


def _reason(error: OSError | MemoryError) -> str:
    return "not enough memory" if isinstance(error, MemoryError) else error.strerror or str(error)
