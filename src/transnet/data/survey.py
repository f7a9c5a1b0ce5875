"""One look at every image before training starts: is it whole, how large, of what colour?

A damaged image must not be met in the last epoch. The look also gives what is needed of each image later: a
hash of its contents (for fingerprints and splits) and its channel statistics (for normalising), so that any
split's mean needs no second pass. The result is kept, and taken again as long as no file has changed; only
what the disk, the network or the memory did not let be read is looked at again each time.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transnet.data.cache import cached
from transnet.data.decode import RULES, Pixels, decode_image
from transnet.data.errors import ReadError
from transnet.data.parallel import for_rows
from transnet.data.stores import ArrayStore, EncodedStore, Store
from transnet.errors import DataError

# mean and square: of each channel's values in 0..1 and of their squares, over the whole image; grey counts
# thrice. unread: bad by no fault of the image's, as far as is known.
RECORD = np.dtype(
    [
        ("sha", np.uint8, (32,)),
        ("height", np.int32),
        ("width", np.int32),
        ("grey", np.bool_),
        ("bad", np.bool_),
        ("unread", np.bool_),
        ("mean", np.float64, (3,)),
        ("square", np.float64, (3,)),
    ]
)
Survey = npt.NDArray[Any]
_LEVELS = np.arange(256) / 255


def survey(store: Store, *, progress: bool) -> Survey:
    """Look at every image of a store.

    Returns:
        One ``RECORD`` a row. Images that cannot be read are marked ``bad``.
    """
    if isinstance(store, ArrayStore):
        return _survey_array(store.images)
    encoded: EncodedStore = store  # type: ignore[assignment]
    key = hashlib.sha256(f"survey 2 {RULES} {encoded.key}".encode()).hexdigest()

    def look(path: Path, rows: npt.NDArray[np.int64]) -> None:
        for_rows(_Look(encoded, path, rows), len(rows), title="checking images", progress=progress)

    def look_again(path: Path) -> None:
        np.load(path, mmap_mode="r+")[:] = seen
        look(path, unread)

    seen = cached(key, (len(encoded),), RECORD, lambda path: look(path, np.arange(len(encoded))))
    # A disk, a network or a memory that failed may do its work by now.
    if len(unread := np.flatnonzero(seen["unread"])):
        seen = cached(key, (len(encoded),), RECORD, look_again, anew=True)
    return seen


def statistics(seen: Survey, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over these images, every image counting the same.

    A channel that never changes gets the deviation 1/255, so that normalising it divides by something.
    """
    mean = seen["mean"].mean(axis=0)
    deviation = np.sqrt(np.maximum(seen["square"].mean(axis=0) - mean**2, 0))
    std = np.maximum(deviation, 1 / 255)
    return tuple(map(float, mean[:channels])), tuple(map(float, std[:channels]))


class _Look:
    """Travels to the workers, each of which writes its rows into the file."""

    def __init__(self, store: EncodedStore, path: Path, rows: npt.NDArray[np.int64]) -> None:
        self.store, self.path, self.rows = store, path, rows

    def __call__(self, start: int, stop: int) -> str | None:
        records = np.load(self.path, mmap_mode="r+")
        for row in map(int, self.rows[start:stop]):
            record = np.zeros((), RECORD)
            try:
                encoded = self.store.encoded(row)
                pixels = decode_image(encoded, check=True)
                record["mean"], record["square"] = _moments(pixels)
            except (ReadError, MemoryError):
                record["bad"] = record["unread"] = True
            except DataError:
                record["bad"] = True
            else:
                record["sha"] = np.frombuffer(hashlib.sha256(encoded).digest(), np.uint8)
                record["height"], record["width"] = pixels.shape[:2]
                record["grey"] = pixels.shape[2] == 1
            records[row] = record
        return None


def _moments(pixels: Pixels) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    # Counting levels is exact and needs no copy of a large image in floating point.
    counts = np.stack([np.bincount(channel.ravel(), minlength=256) for channel in np.moveaxis(pixels, 2, 0)])
    share = counts / counts[0].sum()
    return share @ _LEVELS, share @ _LEVELS**2


def _survey_array(images: Pixels) -> Survey:
    seen = np.zeros(len(images), RECORD)
    seen["height"], seen["width"] = images.shape[1:3]
    seen["grey"] = images.shape[3] == 1
    for start in range(0, len(images), 1024):
        part = images[start : start + 1024]
        flat = part.reshape(len(part), -1, images.shape[3])
        seen["mean"][start : start + 1024] = flat.mean(axis=1, dtype=np.float64) / 255
        seen["square"][start : start + 1024] = np.square(flat, dtype=np.uint32).mean(axis=1) / 255**2
    for row, image in enumerate(images):
        seen["sha"][row] = np.frombuffer(hashlib.sha256(image.tobytes()).digest(), np.uint8)
    return seen
