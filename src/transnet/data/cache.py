"""Arrays that take long to compute, kept in the user's cache folder, which may be deleted at any time.

An entry is an ``.npy`` file, so that it can be mapped into memory, followed by the sha256 of its data. An entry that is
incomplete or damaged is computed again. A second process that needs the same entry waits for the first.
"""

import hashlib
import logging
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transnet.errors import DataError

Array = npt.NDArray[Any]
_log = logging.getLogger("transnet.data")


def cache_folder() -> Path:
    """The folder of the entries: ``TRANSNET_CACHE``, or ``~/.cache/transnet/decoded``."""
    return Path(os.environ.get("TRANSNET_CACHE") or "~/.cache/transnet/decoded").expanduser()


def cached(
    key: str, shape: tuple[int, ...], dtype: npt.DTypeLike, fill: Callable[[Path], None], *, replace: bool = False
) -> Array:
    """The entry of that key, mapped from its file; writing to the array does not change the file.

    ``fill`` writes all values into the ``.npy`` file at the path that it gets. It is called if there is no entry, or in
    any case with ``replace``.
    """
    from filelock import FileLock

    folder = cache_folder()
    path, temporary = folder / f"{key}.npy", folder / f"{key}.tmp"
    if not replace and (array := _load(path, shape, dtype)) is not None:
        return array
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f"{key}.lock"):
            if not replace and (array := _load(path, shape, dtype)) is not None:
                return array
            try:
                allocate(temporary, shape, dtype)
                fill(temporary)
                digest = hashlib.sha256(np.load(temporary, mmap_mode="r")).digest()
                with open(temporary, "ab") as file:
                    file.write(digest)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
            return np.load(path, mmap_mode="c")
    except OSError as error:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        hint = f"{size / 1e9:.2f} GB are needed: make room there, or set TRANSNET_CACHE to another folder"
        raise DataError(f"the cache folder {folder} cannot be written ({error}); {hint}") from error


def allocate(path: Path, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
    """Create an ``.npy`` file to be filled through a mapping; raises an OSError if there is no room for it."""
    path.unlink(missing_ok=True)  # it may be from a process that was killed, whose workers still write to it
    np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):  # writing through a mapping into a full disk would kill the process
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)


def _load(path: Path, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array | None:
    if not path.exists():
        return None
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
        with open(path, "rb") as file:
            file.seek(-32, os.SEEK_END)
            if array.shape == shape and array.dtype == dtype and hashlib.sha256(array).digest() == file.read():
                return array
    except Exception:  # numpy evaluates the header, so a damaged one raises nearly any exception
        pass
    _log.warning("the cache entry %s is damaged and is computed again", path)
    return None
