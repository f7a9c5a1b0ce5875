"""The data sets that have a name here, and how each is to be seen.

| name          | image size | from                                    | augmentation           |
|---------------|------------|-----------------------------------------|------------------------|
| digits        | 8          | scikit-learn, nothing to download       | pad 1, no flip         |
| cifar10       | 32         | torchvision                             | pad 4, flip            |
| cifar100      | 32         | torchvision                             | pad 4, flip            |
| fashion-mnist | 28         | its four archives                       | pad 2, flip            |
| imagenette    | 224        | its archive of 320 pixels               | crops out of 256, flip |
| imagewoof     | 224        | its archive of 320 pixels               | crops out of 256, flip |
| imagenet200   | 224        | Tiny ImageNet's 200 classes in ImageNet | crops out of 256, flip |

Digits are never flipped, for a flipped 2 is none; clothes may be. A folder of that name in ``TRANSNET_DATA``,
in any form that `transnet.data.open_data` reads, is used in place of a download.
"""

import gzip
import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from transnet.data.arrays import read_digits
from transnet.data.download import data_folder, extract, fetch
from transnet.data.folder import read_folder
from transnet.data.source import Source
from transnet.data.stores import ArrayStore
from transnet.errors import DataError


@dataclass(frozen=True)
class Look:
    """How the images of a data set are shown to a network.

    Attributes:
        image_size: side of the square the network sees.
        pad: pixels to pad by before a crop of that size; None: crops out of a larger image instead.
        flip: whether an image and its mirror image are one class.
    """

    image_size: int
    pad: int | None
    flip: bool


NAMED = {
    "digits": Look(8, 1, False),
    "cifar10": Look(32, 4, True),
    "cifar100": Look(32, 4, True),
    "fashion-mnist": Look(28, 2, True),
    "imagenette": Look(224, None, True),
    "imagewoof": Look(224, None, True),
    "imagenet200": Look(224, None, True),
}

# No torchvision class has it. The archive was packed anew once: both editions are in use.
_IMAGEWOOF = "https://s3.amazonaws.com/fast-ai-imageclas/imagewoof2-320.tgz"
_IMAGEWOOF_MD5 = ("0f46d997ec2264e97609196c95897a44", "af65be7963816efa949fa3c3b4947740")
_DOGS = {
    "n02086240": "Shih-Tzu",
    "n02087394": "Rhodesian ridgeback",
    "n02088364": "beagle",
    "n02089973": "English foxhound",
    "n02093754": "Border terrier",
    "n02096294": "Australian terrier",
    "n02099601": "golden retriever",
    "n02105641": "Old English sheepdog",
    "n02111889": "Samoyed",
    "n02115641": "dingo",
}


def read_named(name: str, *, progress: bool) -> Source:
    """The data set of that name, downloaded where it has to be.

    Raises:
        DataError: where it cannot be had; the message says which file to put where.
    """
    if name == "digits":
        return read_digits()
    if name == "imagenet200":
        return _imagenet200()
    if name == "imagewoof":
        return _archive(_IMAGEWOOF, _IMAGEWOOF_MD5, _DOGS, progress=progress)

    from torchvision import datasets

    if name == "imagenette":
        url, md5 = datasets.Imagenette._ARCHIVES["320px"]
        words = {wnid: names[0] for wnid, names in datasets.Imagenette._WNID_TO_CLASS.items()}
        return _archive(url, (md5,), words, progress=progress)
    if name == "fashion-mnist":
        return _fashion_mnist(datasets.FashionMNIST, progress=progress)
    return _cifar({"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name], progress=progress)


def imagenet200_classes() -> dict[str, str]:
    """The 200 classes of Tiny ImageNet: WordNet ids and names, by id."""
    text = files("transnet.data").joinpath("imagenet200.txt").read_text(encoding="utf-8")
    return dict(line.split("\t") for line in text.splitlines())  # type: ignore[misc]


def _cifar(kind: Any, *, progress: bool) -> Source:
    folder = data_folder()
    if not (folder / kind.base_folder).is_dir():
        archive = fetch(kind.url, (kind.tgz_md5,), folder, progress=progress)
        extract(archive, kind.base_folder, folder)
    try:
        # These files are pickles. torchvision compares the md5 of every one of them before it opens any.
        train, test = kind(folder, train=True), kind(folder, train=False)
    except RuntimeError as error:
        where = folder / kind.base_folder
        raise DataError(f"{where}: its files are not the published ones; delete it to unpack it again") from error
    images = np.concatenate([train.data, test.data])
    labels = np.array([*train.targets, *test.targets], np.int64)
    n = len(train.data)
    parts = {"train": np.arange(n), "test": np.arange(n, len(labels))}
    return Source(ArrayStore(images, kind.__name__), labels, tuple(train.classes), parts)


def _fashion_mnist(kind: Any, *, progress: bool) -> Source:
    folder = data_folder() / "fashion-mnist"
    read = [
        gzip.decompress(fetch(kind.mirrors[0] + file, (md5,), folder, progress=progress).read_bytes())
        for file, md5 in kind.resources
    ]
    # The IDX format: a header of 16 bytes before the pixels and of 8 before the labels.
    train, train_labels, test, test_labels = (
        np.frombuffer(data, np.uint8, offset=offset) for data, offset in zip(read, (16, 8, 16, 8))
    )
    images = np.concatenate([train, test]).reshape(-1, 28, 28, 1)
    labels = np.concatenate([train_labels, test_labels]).astype(np.int64)
    n = len(train_labels)
    parts = {"train": np.arange(n), "test": np.arange(n, len(labels))}
    return Source(ArrayStore(images, "fashion-mnist"), labels, tuple(kind.classes), parts)


def _archive(url: str, md5: tuple[str, ...], words: dict[str, str], *, progress: bool) -> Source:
    folder = data_folder()
    inside = url.rsplit("/", 1)[-1].removesuffix(".tgz")
    if not (folder / inside).is_dir():
        extract(fetch(url, md5, folder, progress=progress), inside, folder)
    return _in_words(read_folder(folder / inside, only=list(words)), words)


def _imagenet200() -> Source:
    given = os.environ.get("TRANSNET_IMAGENET")
    root = Path(os.path.expanduser(given)) if given else data_folder() / "imagenet"
    if not (root / "train").is_dir() or not (root / "val").is_dir():
        raise DataError(
            f"{root}: no ImageNet here, which is train/ and val/ with a folder for each class such as"
            " n01443537; it cannot be downloaded without an account: set TRANSNET_IMAGENET to the folder of"
            " your copy"
        )
    words = imagenet200_classes()
    return _in_words(read_folder(root, only=list(words)), words)


def _in_words(source: Source, words: dict[str, str]) -> Source:
    return Source(source.store, source.labels, tuple(words[wnid] for wnid in source.classes), source.parts)
