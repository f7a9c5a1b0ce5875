"""Downloads: torchvision fetches and unpacks, the checks and messages are here.

A file or folder appears under its name only when it is complete and verified. A file that was put there by hand is
used like a download.
"""

import os
import socket
import sys
import tarfile
import zlib
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from transnet.errors import DataError

_TIMEOUT = 15  # seconds without a byte


def fetch(url: str, md5: tuple[str, ...], folder: Path, *, progress: bool) -> Path:
    """Download ``url`` into ``folder``, unless the file is there already, and return its path.

    The file must have one of the checksums ``md5``. A bar is shown if standard error is a terminal.
    """
    from http.client import HTTPException

    from filelock import FileLock
    from torchvision.datasets.utils import download_url

    path = folder / url.rsplit("/", 1)[-1]
    if path.exists():  # possibly in a folder that is read-only
        _verify(path, md5, f"delete it to download it again from {url}")
        return path
    patience = socket.getdefaulttimeout()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{path.name}.lock"), TemporaryDirectory(prefix=f".{path.name}.", dir=folder) as aside:
            if path.exists():  # another process was faster
                return path
            socket.setdefaulttimeout(_TIMEOUT)  # torchvision would wait for ever
            with redirect_stderr(sys.stderr if progress and sys.stderr.isatty() else StringIO()):
                download_url(url, aside)
            _verify(Path(aside, path.name), md5, f"the download from {url} was cut short or changed: try again")
            os.replace(Path(aside, path.name), path)
    except (OSError, RuntimeError, HTTPException) as error:
        raise DataError(
            f"cannot download {url} ({getattr(error, 'reason', error)}); put the file {path.name} (md5 {md5[0]}) into"
            f" {folder}, or set TRANSNET_DATA to the folder that holds it"
        ) from error
    finally:
        socket.setdefaulttimeout(patience)
    return path


def fetch_folder(url: str, md5: tuple[str, ...], inside: str, folder: Path, *, progress: bool) -> Path:
    """Download and unpack an archive, unless that is done already, and return the folder ``inside`` it."""
    from filelock import FileLock
    from torchvision.datasets.utils import extract_archive

    if (folder / inside).is_dir():
        return folder / inside
    archive = fetch(url, md5, folder, progress=progress)
    try:
        with FileLock(folder / f".{inside}.lock"), TemporaryDirectory(prefix=f".{inside}.", dir=folder) as aside:
            if not (folder / inside).is_dir():  # otherwise another process was faster
                extract_archive(archive, aside)
                os.rename(Path(aside, inside), folder / inside)
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise DataError(f"{archive}: cannot be unpacked into {folder} ({error})") from error
    return folder / inside


def _verify(path: Path, md5: tuple[str, ...], advice: str) -> None:
    from torchvision.datasets.utils import calculate_md5

    if (found := calculate_md5(path)) not in md5:
        raise DataError(f"{path} has the md5 {found}, expected is {' or '.join(md5)}; {advice}")
