"""The datasets that have a name here: one record each, and a reader for each kind of file that they come in.

The command line's help, the recipes' defaults and the default networks come from these records. To add a dataset, add
a record, and a reader if its files are of a new kind. A folder in ``TRANSNET_DATA`` that is called like the dataset is
used instead of a download.
"""

import gzip
import os
import socket
import sys
import tarfile
import zlib
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

# The command line's help reads this file, so nothing here may import torch.
from transnet.data.arrays import source_of_arrays
from transnet.data.folder import read_folder
from transnet.data.pixels import Geometry
from transnet.data.source import Source
from transnet.errors import DataError

_TIMEOUT = 15  # seconds without a byte of a download
# torchvision has no class for ImageWoof. The archive was packed a second time once: both editions are in use.
IMAGEWOOF = (
    "https://s3.amazonaws.com/fast-ai-imageclas/imagewoof2-320.tgz",
    ("0f46d997ec2264e97609196c95897a44", "af65be7963816efa949fa3c3b4947740"),
)


@dataclass(frozen=True)
class NamedDataset:
    """What is known about a dataset before it is opened."""

    geometry: Geometry
    flip: bool  # whether training flips images left-right
    model: str  # the default network
    folder: str  # of its files in ``TRANSNET_DATA`` after a download; empty if it needs none
    read: Callable[[bool], Source]  # downloads it if necessary; the argument is whether to show progress
    recipe: str = ""  # the key of its settings in `transnet.runs.recipes`, if any


def data_folder() -> Path:
    """The folder of downloads: ``TRANSNET_DATA``, or ``~/.cache/transnet``."""
    return Path(os.environ.get("TRANSNET_DATA") or "~/.cache/transnet").expanduser()


def needs_download(name: str) -> bool:
    """Whether the files of a named dataset are still missing."""
    folder = DATASETS[name].folder
    return bool(folder) and not any((data_folder() / path).is_dir() for path in (name, folder))


def fetch(url: str, md5: tuple[str, ...], folder: Path, *, progress: bool) -> Path:
    """Download ``url`` into ``folder``, unless the file is there already, and return its path.

    The file must have one of the checksums ``md5``, and appears under its name only when it is complete and verified.
    """
    from http.client import HTTPException

    from filelock import FileLock
    from torchvision.datasets.utils import download_url

    path = folder / url.rsplit("/", 1)[-1]
    if path.exists():  # possibly in a folder that is read-only
        _verify(path, md5, f"delete it to download it again from {url}")
        return path
    timeout = socket.getdefaulttimeout()
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
        socket.setdefaulttimeout(timeout)
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


def _digits(_progress: bool) -> Source:
    """scikit-learn's 1,797 handwritten digits of 8×8 pixels, which need no download and train in seconds."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = np.rint(images.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    return source_of_arrays("digits", {"train": pixels}, {"train": labels}, tuple("0123456789"))


def _cifar(kind: str, progress: bool) -> Source:
    from torchvision import datasets

    published = getattr(datasets, kind)
    root = data_folder()
    folder = fetch_folder(published.url, (published.tgz_md5,), published.base_folder, root, progress=progress)
    try:
        # These files are pickles. torchvision compares the md5 of every one of them before it opens any.
        train, test = published(root, train=True), published(root, train=False)
    except RuntimeError as error:
        raise DataError(f"{folder}: its files are not the published ones; delete it to unpack it again") from error
    labels = {"train": np.array(train.targets), "test": np.array(test.targets)}
    return source_of_arrays(kind, {"train": train.data, "test": test.data}, labels, tuple(train.classes))


def _fashion_mnist(progress: bool) -> Source:
    from torchvision.datasets import FashionMNIST

    folder = data_folder() / "FashionMNIST" / "raw"  # as torchvision keeps them
    paths = [
        fetch(FashionMNIST.mirrors[0] + name, (md5,), folder, progress=progress) for name, md5 in FashionMNIST.resources
    ]
    # The IDX format: a header of 16 bytes before the pixels and of 8 before the labels.
    train, train_labels, test, test_labels = (
        np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)
        for path, header in zip(paths, (16, 8, 16, 8))
    )
    pixels = {"train": train.reshape(-1, 28, 28, 1), "test": test.reshape(-1, 28, 28, 1)}
    labels = {"train": train_labels, "test": test_labels}
    return source_of_arrays("fashion-mnist", pixels, labels, tuple(FashionMNIST.classes))


def _imagenette(size: str, progress: bool) -> Source:
    from torchvision.datasets import Imagenette

    url, md5 = Imagenette._ARCHIVES[size]
    classes = {wordnet_id: names[0] for wordnet_id, names in Imagenette._WNID_TO_CLASS.items()}
    return _wordnet_folder(
        fetch_folder(url, (md5,), f"imagenette2-{size[:3]}", data_folder(), progress=progress), classes
    )


def _imagewoof(progress: bool) -> Source:
    folder = fetch_folder(*IMAGEWOOF, "imagewoof2-320", data_folder(), progress=progress)
    return _wordnet_folder(folder, wordnet_classes("imagewoof"))


def _imagenet200(_progress: bool) -> Source:
    root = Path(os.environ.get("TRANSNET_IMAGENET") or data_folder() / "imagenet").expanduser()
    if not (root / "train").is_dir() or not (root / "val").is_dir():
        raise DataError(
            f"{root}: no train/ and val/ of ImageNet here; it cannot be downloaded without an account: set"
            " TRANSNET_IMAGENET to the folder of your copy"
        )
    return _wordnet_folder(root, wordnet_classes("imagenet200"))


def wordnet_classes(name: str) -> dict[str, str]:
    """The classes of ``imagenet200`` (those of Tiny ImageNet) or ``imagewoof``: names by WordNet id."""
    text = files("transnet.data").joinpath(f"{name}.txt").read_text(encoding="utf-8")
    return dict(line.split("\t") for line in text.splitlines())  # type: ignore[misc]


def _wordnet_folder(root: Path, classes: dict[str, str]) -> Source:
    """Read a folder whose classes are called by their WordNet ids."""
    return replace(read_folder(root, only=list(classes)), classes=tuple(classes.values()))


_PHOTOGRAPHS, _CIFAR = Geometry.square(224, stored=256), Geometry.square(32, pad=4)
_RESNET18 = "torchvision:resnet18"

DATASETS = {
    "digits": NamedDataset(Geometry.square(8, pad=1), False, "resnet8-small", "", _digits, "digits"),
    "cifar10": NamedDataset(_CIFAR, True, "resnet18-cifar", "cifar-10-batches-py", partial(_cifar, "CIFAR10"), "cifar"),
    "cifar100": NamedDataset(_CIFAR, True, "resnet18-cifar", "cifar-100-python", partial(_cifar, "CIFAR100"), "cifar"),
    # Clothes may be flipped, unlike digits.
    "fashion-mnist": NamedDataset(
        Geometry.square(28, pad=2), True, "resnet20-small", "FashionMNIST/raw", _fashion_mnist
    ),
    "imagenette": NamedDataset(_PHOTOGRAPHS, True, _RESNET18, "imagenette2-320", partial(_imagenette, "320px")),
    "imagenette160": NamedDataset(
        Geometry.square(128, stored=160), True, _RESNET18, "imagenette2-160", partial(_imagenette, "160px")
    ),
    "imagewoof": NamedDataset(_PHOTOGRAPHS, True, _RESNET18, "imagewoof2-320", _imagewoof),
    "imagenet200": NamedDataset(_PHOTOGRAPHS, True, "torchvision:resnet50", "imagenet", _imagenet200, "imagenet200"),
}
NAMES = tuple(DATASETS)
