"""Arrays that cost time to make, kept in the user's cache folder.

The folder is ``TRANSNET_CACHE``, or ``~/.cache/transnet/decoded``; it may be deleted at any time. An entry is
an ``.npy`` file, so that it can be mapped into memory, followed by the sha256 of its data. It appears under
its name only when it is complete and on the disk; a second process that wants the same entry waits for the
first; one whose size or checksum is wrong is made again.
"""

import errno
import hashlib
import logging
import os
import uuid
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
    """Where the entries are."""
    return Path(os.environ.get("TRANSNET_CACHE") or "~/.cache/transnet/decoded").expanduser()


def cached(
    key: str, shape: tuple[int, ...], dtype: npt.DTypeLike, fill: Callable[[Path], None], *, anew: bool = False
) -> Array:
    """The entry of that key, made by ``fill`` where there is none.

    Args:
        key: a name that decides the contents: a hash of all that they depend on.
        shape: of the array; no dimension may be 0.
        dtype: of the array.
        fill: writes all values into the ``.npy`` file at the path it is given (``numpy.load(path, "r+")``),
            with as many processes as it likes.
        anew: make it also where there is one, whose place the new one takes.

    Returns:
        The array, mapped from the file. Writing to it changes this process's copy only.

    Raises:
        DataError: where the folder cannot be written or has too little room.
    """
    from filelock import FileLock

    dtype = np.dtype(dtype)
    folder = cache_folder()
    path = folder / f"{key}.npy"
    if not anew and (array := _load(path, shape, dtype)) is not None:
        return array
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f"{key}.lock"):
            if not anew and (array := _load(path, shape, dtype)) is not None:
                return array
            # The lock is ours, so what is left under this key belongs to a process that was killed.
            for stale in folder.glob(f"{key}.*.tmp"):
                stale.unlink(missing_ok=True)
            _build(path, shape, dtype, fill)
    except OSError as error:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        why = "is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else f"cannot be written ({error})"
        raise DataError(
            f"the cache folder {folder} {why}; {size / 1e9:.2f} GB are needed there: make room, or set"
            " TRANSNET_CACHE to another folder"
        ) from error
    if (array := _load(path, shape, dtype)) is None:
        raise DataError(f"the cache entry {path} is damaged right after it was written; check the disk")
    return array


def _build(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], fill: Callable[[Path], None]) -> None:
    temporary = path.with_name(f"{path.stem}.{uuid.uuid4().hex}.tmp")
    try:
        out = np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=shape)
        del out
        with open(temporary, "r+b") as file:
            # Writing through a mapping into a full disk kills the process: ask for the room first.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
        fill(temporary)
        digest = _digest(np.load(temporary, mmap_mode="r"))
        with open(temporary, "ab") as file:
            file.write(digest)
            file.flush()
            os.fsync(file.fileno())  # and with it all that was written through mappings, by whatever process
        os.replace(temporary, path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _load(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
    if not path.exists():
        return None
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
        with open(path, "rb") as file:
            file.seek(-32, os.SEEK_END)
            digest = file.read()
        if array.shape == shape and array.dtype == dtype and _digest(array) == digest:
            return array
    except Exception:  # numpy evaluates the header: a damaged one raises nearly anything
        pass
    _log.warning("the cache entry %s is damaged and is made again", path)
    return None


def _digest(array: Array) -> bytes:
    flat = array.reshape(-1).view(np.uint8)
    blocks = [flat[start : start + _BLOCK] for start in range(0, flat.size, _BLOCK)]
    with ThreadPoolExecutor() as pool:  # hashing releases the interpreter's lock
        parts = pool.map(lambda block: hashlib.sha256(block).digest(), blocks)
        return hashlib.sha256(b"".join(parts)).digest()


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
