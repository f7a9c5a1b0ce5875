"""Arrays that take long to compute, kept in the user's cache folder.

The folder is ``TRANSNET_CACHE``, or ``~/.cache/transnet/decoded``; it may be deleted at any time. An entry is an
``.npy`` file, so that it can be mapped into memory, followed by the sha256 of its data. An entry that is incomplete or
damaged is computed again. A second process that needs the same entry waits for the first.
"""

import errno
import hashlib
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transnet.errors import DataError

Array = npt.NDArray[Any]
_BLOCK = 1 << 26
_log = logging.getLogger("transnet.data")


def cache_folder() -> Path:
    """The folder of the entries."""
    return Path(os.environ.get("TRANSNET_CACHE") or "~/.cache/transnet/decoded").expanduser()


def cached(
    key: str, shape: tuple[int, ...], dtype: npt.DTypeLike, fill: Callable[[Path], None], *, replace: bool = False
) -> Array:
    """The entry of that key; ``fill`` computes it if there is none, or in any case with ``replace``.

    ``key`` is a hash of all that the contents depend on. ``fill`` writes all values into the ``.npy`` file at the path
    that it gets (``numpy.load(path, "r+")``), with any number of processes. The array is mapped from the file; writing
    to it changes only this process's copy.

    Raises:
        DataError: if the folder cannot be written or has too little room.
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
                digest = _digest(np.load(temporary, mmap_mode="r"))
                with open(temporary, "ab") as file:
                    file.write(digest)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
            return np.load(path, mmap_mode="c")
    except OSError as error:
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        why = "is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else f"cannot be written ({error})"
        raise DataError(
            f"the cache folder {folder} {why}; {size / 1e9:.2f} GB are needed there: make room, or set"
            " TRANSNET_CACHE to another folder"
        ) from error


def allocate(path: Path, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
    """Create an ``.npy`` file to be filled through a mapping.

    Raises:
        OSError: if there is no room for it. Writing through a mapping into a full disk would kill the process.
    """
    path.unlink(missing_ok=True)  # it may be from a process that was killed, whose workers still write to it
    np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)


def _load(path: Path, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array | None:
    if not path.exists():
        return None
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
        with open(path, "rb") as file:
            file.seek(-32, os.SEEK_END)
            if array.shape == shape and array.dtype == dtype and _digest(array) == file.read():
                return array
    except Exception:  # numpy evaluates the header, so a damaged one raises nearly any exception
        pass
    _log.warning("the cache entry %s is damaged and is computed again", path)
    return None


def _digest(array: Array) -> bytes:
    flat = array.reshape(-1).view(np.uint8)
    blocks = [flat[start : start + _BLOCK] for start in range(0, flat.size, _BLOCK)]
    with ThreadPoolExecutor() as pool:  # hashing releases the interpreter's lock
        parts = pool.map(lambda block: hashlib.sha256(block).digest(), blocks)
        return hashlib.sha256(b"".join(parts)).digest()
