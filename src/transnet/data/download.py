"""Files from the net: verified before anything reads them, and never half there.

They lie in ``TRANSNET_DATA``, or ``~/.cache/transnet``. A file put there by hand is as good as a download.
"""

import hashlib
import os
import shutil
import tarfile
import uuid
import zlib
from pathlib import Path

from transnet.data.parallel import bar
from transnet.errors import DataError

_BLOCK = 1 << 20
_PATIENCE_S = 15


def data_folder() -> Path:
    """Where downloads are kept."""
    return Path(os.environ.get("TRANSNET_DATA") or "~/.cache/transnet").expanduser()


def fetch(url: str, md5: tuple[str, ...], folder: Path, *, progress: bool) -> Path:
    """The file at ``url``, downloaded into ``folder`` unless it is there already.

    Args:
        url: what to download.
        md5: the checksums of its known editions, one of which it must have.
        folder: where it is kept under its own name.
        progress: show a bar.

    Raises:
        DataError: where it cannot be had (the message says which file to put where), or is not the known one.
    """
    from filelock import FileLock

    path = folder / url.rsplit("/", 1)[-1]
    try:
        if not path.exists():  # the folder of one that is there may be read-only
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / f".{path.name}.lock"):
                if not path.exists():
                    _download(url, md5, path, progress=progress)
                    return path
    except OSError as error:
        raise DataError(f"{folder}: cannot be written ({error}); set TRANSNET_DATA to a folder that can") from error
    _verify(path, md5, f"delete it to download it again from {url}")
    return path


def extract(archive: Path, inside: str, folder: Path) -> Path:
    """Unpack a verified tar archive and return the folder ``inside`` it; use the one that is there already.

    It is unpacked aside and then renamed, so that a folder that is there is complete.

    Raises:
        DataError: where the archive does not hold that folder or there is no room.
    """
    target = folder / inside
    if target.is_dir():
        return target
    aside = folder / f".{inside}.{uuid.uuid4().hex}"
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(aside, filter="data")
        if not (aside / inside).is_dir():
            raise DataError(f"{archive}: holds no folder {inside}/; it is not the archive it should be")
        try:
            os.rename(aside / inside, target)
        except OSError:
            if not target.is_dir():  # otherwise another process was faster, with the same contents
                raise
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise DataError(f"{archive}: cannot be unpacked into {folder} ({error})") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def _download(url: str, md5: tuple[str, ...], path: Path, *, progress: bool) -> None:
    from urllib.request import Request, urlopen

    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        try:
            request = Request(url, headers={"User-Agent": "transnet"})
            with urlopen(request, timeout=_PATIENCE_S) as response, open(temporary, "wb") as file:
                total = int(response.headers.get("Content-Length") or 0)
                with bar(f"downloading {path.name}", total, shown=progress, unit="bytes") as advance:
                    while block := response.read(_BLOCK):
                        file.write(block)
                        advance(len(block))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise DataError(
                f"cannot download {url} ({reason}); fetch the file {path.name} (md5 {md5[0]}) elsewhere and"
                f" put it into {path.parent}, or set TRANSNET_DATA to the folder that holds it"
            ) from error
        _verify(temporary, md5, f"the download from {url} was cut short or changed on its way: try again")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _verify(path: Path, md5: tuple[str, ...], advice: str) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with open(path, "rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    if digest.hexdigest() not in md5:
        raise DataError(f"{path} has the md5 {digest.hexdigest()}, expected is {' or '.join(md5)}; {advice}")
