"""All images of a split in one array, small enough for a device: decoded once, on all cores, and kept."""

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transnet.data.cache import cached
from transnet.data.decode import RULES, Pixels, decode_image, square, with_channels
from transnet.data.parallel import for_rows
from transnet.data.stores import ArrayStore, EncodedStore, Store
from transnet.errors import DataError

Rows = npt.NDArray[np.int64]


def resident_array(store: Store, rows: Rows, hashes: Pixels, *, channels: int, size: int, progress: bool) -> Pixels:
    """These rows as uint8 (N, size, size, channels); `Split.resident` is the way to call it.

    What already is an array in memory is not kept in the cache, unless it has to be resized.
    """
    if isinstance(store, ArrayStore) and store.images.shape[1:] == (size, size, channels):
        return store.images[rows]
    digest = hashlib.sha256(f"resident {RULES} {size} {channels} ".encode())
    digest.update(hashes.tobytes())

    def fill(path: Path) -> None:
        work = _Decode(store, rows, hashes, channels=channels, size=size, path=path)
        for_rows(work, len(rows), title="decoding images", progress=progress)

    return cached(digest.hexdigest(), (len(rows), size, size, channels), np.uint8, fill)


class _Decode:
    """Travels to the workers, each of which writes its rows into the file."""

    def __init__(self, store: Store, rows: Rows, hashes: Pixels, *, channels: int, size: int, path: Path) -> None:
        self.store, self.rows, self.hashes = store, rows, hashes
        self.channels, self.size, self.path = channels, size, path

    def __call__(self, start: int, stop: int) -> str | None:
        out = np.load(self.path, mmap_mode="r+")
        for i in range(start, stop):
            row = int(self.rows[i])
            try:
                out[i] = square(with_channels(self._pixels(row, i), self.channels), self.size)
            except DataError as error:
                return f"{self.store.where(row)}: {error}"
        return None

    def _pixels(self, row: int, i: int) -> Pixels:
        if isinstance(self.store, ArrayStore):
            return self.store.pixels(row)
        store: EncodedStore = self.store  # type: ignore[assignment]
        encoded = store.encoded(row)
        # The entry's name promises these contents: a file changed meanwhile must not be kept under it.
        if hashlib.sha256(encoded).digest() != self.hashes[i].tobytes():
            raise DataError("was changed while it was being read; start again when nothing writes to it")
        return decode_image(encoded)
