"""Check every image once before training starts: is it complete, how large is it, and is it grey?

The records are cached as long as no file changes. Images that could not be read are checked again each time, because
the disk, the network or a lack of memory may have been the reason.
"""

import hashlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transnet.data.cache import allocate, cached
from transnet.data.dataset import for_rows
from transnet.data.pixels import RULES, Geometry, Pixels, Size, decode_image, with_channels
from transnet.data.source import ArrayStore, EncodedStore, Rows, Store, read_encoded
from transnet.errors import DataError

_RECORD = np.dtype(
    [
        ("sha", np.uint8, (32,)),  # of the contents, for fingerprints and splits
        ("height", np.int32),
        ("width", np.int32),
        ("grey", np.bool_),
        ("bad", np.bool_),
        ("mean", np.float64, (3,)),  # of each channel's values in 0…1; a grey image has three equal channels
        ("square", np.float64, (3,)),  # the mean of the squared values
    ]
)
Records = npt.NDArray[np.void]
_LEVELS = np.arange(256) / 255
_SAMPLE = 32
# Bytes of decoded images to keep: with more of them, writing and reading them takes as long as decoding.
_KEEP = 1 << 32
_BLOCK = 1024


def survey(
    store: Store, *, progress: bool, expect: Callable[[Records], tuple[Size, int]] | None = None
) -> tuple[Records, Pixels | None]:
    """Check every image of a store and return one record per row; images that cannot be read are marked ``bad``.

    ``expect`` guesses, from the records of some good images, the stored size and the channels of all. The second result
    are the images in that form, (N, height, width, channels), if there is room: so they are decoded only once.
    """
    if isinstance(store, ArrayStore):
        return _survey_array(store.images), None
    decoded = None

    def check(path: Path, rows: Rows, keep: Path | None = None) -> None:
        for_rows(partial(_check, store, path, rows, keep), len(rows), title="checking images", progress=progress)

    def fill(path: Path) -> None:
        nonlocal decoded
        keep = _file_to_keep(store, path, expect) if expect else None
        try:
            check(path, np.arange(len(store)), keep)
            decoded = np.load(keep, mmap_mode="r") if keep else None
        finally:
            if keep:
                keep.unlink()  # the pixels stay as long as the array is in use

    def fill_again(path: Path) -> None:
        np.load(path, mmap_mode="r+")[:] = records
        check(path, bad)

    key = hashlib.sha256(f"survey 3 {RULES} {store.key}".encode()).hexdigest()
    records = cached(key, (len(store),), _RECORD, fill)
    if len(bad := np.flatnonzero(records["bad"])) and decoded is None:
        records = cached(key, records.shape, _RECORD, fill_again, replace=True)
    return records, decoded


def statistics(records: Records, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over these images, each of which has the same weight."""
    mean = records["mean"].mean(axis=0)
    deviation = np.sqrt(np.maximum(records["square"].mean(axis=0) - mean**2, 0))
    std = np.maximum(deviation, 1 / 255)  # so that normalising a constant channel does not divide by zero
    return tuple(map(float, mean[:channels])), tuple(map(float, std[:channels]))


def _file_to_keep(store: EncodedStore, path: Path, expect: Callable[[Records], tuple[Size, int]]) -> Path | None:
    """A file for the decoded images next to ``path``, unless they are too many or there is no room."""
    sample = np.unique(np.linspace(0, len(store) - 1, _SAMPLE).astype(np.int64))
    _check(store, path, sample, None, range(len(sample)))
    records = np.load(path)[sample]
    if records["bad"].all() or os.name != "posix":  # other systems cannot remove a file that is in use
        return None
    size, channels = expect(records[~records["bad"]])
    keep = path.with_suffix(".pixels.tmp")
    if len(store) * size[0] * size[1] * channels > _KEEP:
        return None
    try:
        allocate(keep, (len(store), *size, channels), np.uint8)
    except OSError:
        keep.unlink(missing_ok=True)
        return None
    return keep


def _check(store: EncodedStore, path: Path, rows: Rows, keep: Path | None, part: range) -> None:
    """Write the records of some rows, and the pixels if they are kept; runs in worker processes."""
    records = np.load(path, mmap_mode="r+")
    kept = np.load(keep, mmap_mode="r+") if keep else None
    for row in rows[part.start : part.stop].tolist():
        record = np.zeros((), _RECORD)
        try:
            encoded = read_encoded(store, row)
            pixels = decode_image(encoded, check=True)
            # Counting levels is exact and needs no floating-point copy of a large image.
            counts = np.stack([np.bincount(channel.ravel(), minlength=256) for channel in np.moveaxis(pixels, 2, 0)])
            share = counts / counts[0].sum()
            record["mean"], record["square"] = share @ _LEVELS, share @ _LEVELS**2
            if kept is not None:
                size = kept.shape[1:3]
                kept[row] = Geometry(size, size).fit(with_channels(pixels, kept.shape[3]))
        except (DataError, MemoryError):
            record["bad"] = True
        else:
            record["sha"] = np.frombuffer(hashlib.sha256(encoded).digest(), np.uint8)
            record["height"], record["width"], record["grey"] = *pixels.shape[:2], pixels.shape[2] == 1
        records[row] = record


def _survey_array(images: Pixels) -> Records:
    records = np.zeros(len(images), _RECORD)
    records["height"], records["width"], records["grey"] = *images.shape[1:3], images.shape[3] == 1
    for start in range(0, len(images), _BLOCK):
        flat = images[start : start + _BLOCK].reshape(-1, images[0, :, :, 0].size, images.shape[3])
        part = records[start : start + _BLOCK]
        part["mean"] = flat.mean(axis=1, dtype=np.float64) / 255
        part["square"] = np.square(flat, dtype=np.uint32).mean(axis=1) / 255**2
        part["sha"] = [np.frombuffer(hashlib.sha256(image.tobytes()).digest(), np.uint8) for image in flat]
    return records
