"""What every reader returns: labelled images that are accessed by row.

Stores are sent to worker processes, so they hold no open files and few Python objects.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transnet.data.pixels import Pixels, decode_image
from transnet.errors import DataError

Rows = npt.NDArray[np.int64]

# What people call the splits, and what they are called here.
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


class FileStore:
    """Images that are separate files, at ``paths`` relative to ``root``."""

    def __init__(self, root: Path, paths: Sequence[str]) -> None:
        self.root = root
        # An array, not a list: forked workers that touch a million strings would copy them all.
        self._paths = np.array([os.fsencode(path) for path in paths])

    def __len__(self) -> int:
        return len(self._paths)

    def where(self, row: int) -> str:
        """The file of that row."""
        return os.path.join(self.root, os.fsdecode(bytes(self._paths[row])))

    def read(self, row: int) -> bytes:
        """The bytes of an image file."""
        return Path(self.where(row)).read_bytes()

    @property
    def key(self) -> str:
        """A hash of names, sizes and times; it also changes when only permissions do."""
        digest = hashlib.sha256(os.fsencode(self.root.resolve()))
        for row, path in enumerate(self._paths):
            try:
                stat = os.stat(self.where(row))
                state = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
            except OSError as error:
                state = (-1, error.errno or 0, 0)
            digest.update(bytes(path) + f"\0{state}\n".encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class PackedStore:
    """Encoded images one after another in one file, to which parquet shards are unpacked."""

    packed: Path
    start: int  # of the first image in it
    ends: Rows  # of each image, from there
    key: str  # a hash of the shards' names, sizes and times
    shards: Sequence[tuple[str, int]]  # names and numbers of rows

    def __len__(self) -> int:
        return len(self.ends)

    def where(self, row: int) -> str:
        """The image's place, for a message."""
        for name, rows in self.shards:
            if row < rows:
                return f"{name}, row {row}"
            row -= rows
        raise IndexError(row)

    def read(self, row: int) -> bytes:
        """The bytes of an image file."""
        begin = int(self.ends[row - 1]) if row else 0
        with open(self.packed, "rb") as file:
            file.seek(self.start + begin)
            return file.read(int(self.ends[row]) - begin)


@dataclass(frozen=True)
class ArrayStore:
    """Images of one size that are pixels in memory."""

    images: Pixels  # (N, H, W, C)
    name: str  # for messages

    def where(self, row: int) -> str:
        """The image's place, for a message."""
        return f"{self.name}, image {row}"


EncodedStore = FileStore | PackedStore
Store = EncodedStore | ArrayStore


def read_encoded(store: EncodedStore, row: int) -> bytes:
    """The bytes of an image file; raises a DataError with the reason only."""
    try:
        return store.read(row)
    except OSError as error:
        raise DataError(f"cannot be read ({error})") from error


def load_pixels(store: Store, row: int, *, check: bool = False) -> Pixels:
    """The whole image, (h, w, 1) or (h, w, 3); raises a DataError that names it if it cannot be read."""
    if isinstance(store, ArrayStore):
        return store.images[row]
    try:
        return decode_image(read_encoded(store, row), check=check)
    except DataError as error:
        raise DataError(f"{store.where(row)}: {error}") from error


@dataclass(frozen=True)
class Source:
    """Images with labels as they were found, before they are checked and split."""

    store: Store
    labels: Rows  # one per row of the store
    classes: tuple[str, ...]  # the labels' names
    splits: dict[str, Rows]  # rows of "train", and of "val" and "test" if the data has them


def class_names(source: str, labels: Rows, names: Sequence[str] | None) -> tuple[str, ...]:
    """The names of labels from 0 on: ``names``, or the numbers themselves if there are none."""
    if not len(labels):
        raise DataError(f"{source}: no image has a label")
    # Without names, a label above the number of images is an id; that many names could fill the memory.
    count = len(labels) if names is None else len(names)
    if len(wrong := labels[(labels < 0) | (labels >= count)]):
        what = "images" if names is None else "classes"
        raise DataError(f"{source}: label {wrong[0]} is out of range; {count} {what} have labels in 0…{count - 1}")
    return tuple(map(str, range(int(labels.max()) + 1) if names is None else names))
