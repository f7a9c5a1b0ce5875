"""Datasets whose pixels fit in memory, such as ``.npz`` files."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transnet.data.pixels import Pixels
from transnet.data.source import ArrayStore, Rows, Source, class_names
from transnet.errors import DataError

Array = npt.NDArray[Any]
_NAMES = (("x_{}", "y_{}"), ("{}_images", "{}_labels"))
_LAYOUT = (
    "expected are the arrays x and y, or images and labels, or x_train y_train x_test y_test [x_val y_val], or"
    " train_images train_labels and so on, and optionally classes, the names"
)


def source_of_arrays(
    name: str, images: dict[str, Pixels], labels: dict[str, Array], classes: tuple[str, ...] | None
) -> Source:
    """A dataset from each split's images (N, H, W, C) and labels (N,); classes None are called by their numbers."""
    all_labels = np.concatenate(list(labels.values())).astype(np.int64)
    ends = np.cumsum([len(values) for values in labels.values()])
    rows = np.split(np.arange(len(all_labels)), ends[:-1])
    store = ArrayStore(np.concatenate(list(images.values())), name)
    return Source(store, all_labels, class_names(name, all_labels, classes), dict(zip(labels, rows)))


def read_npz(path: Path) -> Source:
    """Read an ``.npz`` of images (N, H, W) or (N, H, W, C), C 1 or 3, and labels (N,).

    Without ``classes`` (an array of strings) the classes are called by their numbers. Pixels are uint8, or other
    numbers in 0…255. Pickled objects are never read.
    """
    arrays = _read(path)
    pairs = {split: pair for split in ("train", "val", "test") if (pair := _pair(path, arrays, split)) is not None}
    whole = [pair for pair in (("x", "y"), ("X", "y"), ("images", "labels")) if set(pair) <= set(arrays)]
    if not pairs and whole:
        pairs = {"train": whole[0]}
    if "train" not in pairs:
        raise DataError(f"{path}: no training images in {' '.join(arrays) or 'an empty file'}; {_LAYOUT}")

    images = {split: _images(f"{path}: {x}", arrays[x]) for split, (x, _) in pairs.items()}
    labels = {split: _labels(f"{path}: {y}", arrays[y]) for split, (_, y) in pairs.items()}
    shape = images["train"].shape[1:]
    for split, (x, y) in pairs.items():
        if images[split].shape[1:] != shape:
            raise DataError(f"{path}: {x} has images of {images[split].shape[1:]}, the training set of {shape}")
        if len(images[split]) != len(labels[split]):
            raise DataError(f"{path}: {len(images[split])} images in {x}, but {len(labels[split])} labels in {y}")
    names = arrays.get("classes")
    if names is not None and (names.ndim != 1 or names.dtype.kind not in "US"):
        raise DataError(f"{path}: classes is not a list of strings, but {names.dtype}")
    return source_of_arrays(str(path), images, labels, None if names is None else tuple(names.astype(np.str_).tolist()))


def _read(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except Exception as error:  # numpy, zipfile and zlib raise nearly any exception for a damaged file
        pickled = "holds pickled objects, which may run code and are not read"
        why = pickled if "pickle" in str(error) else f"not a complete .npz ({error})"
        raise DataError(f"{path}: {why}; save plain arrays with numpy.savez") from error


def _pair(path: Path, arrays: dict[str, Array], split: str) -> tuple[str, str] | None:
    """The names of a split's images and labels."""
    for x, y in ((images.format(split), labels.format(split)) for images, labels in _NAMES):
        if x in arrays and y in arrays:
            return x, y
        if x in arrays or y in arrays:
            raise DataError(f"{path}: there is {x if x in arrays else y}, but no {y if x in arrays else x}; {_LAYOUT}")
    return None


def _images(source: str, values: Array) -> Pixels:
    images = values[..., None] if values.ndim == 3 else values
    if images.ndim != 4 or images.shape[3] not in (1, 3) or 0 in images.shape:
        raise DataError(
            f"{source} has shape {values.shape}; images are (N, H, W), (N, H, W, 1) or (N, H, W, 3);"
            " if the channels come first, use transpose(0, 2, 3, 1)"
        )
    if images.dtype == np.uint8:
        return np.ascontiguousarray(images)
    if images.dtype.kind not in "uif":
        raise DataError(f"{source} has type {images.dtype}; pixels are numbers, best uint8")
    low, high = images.min(), images.max()
    if not (low >= 0 and high <= 255) or (images.dtype.kind == "f" and high <= 1):  # also if one is not a number
        raise DataError(f"{source} has values from {low} to {high}; pixels are in 0…255: scale them and save uint8")
    return np.rint(images).astype(np.uint8)


def _labels(source: str, values: Array) -> Rows:
    labels = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if labels.ndim != 1 or labels.dtype.kind not in "ui":
        raise DataError(f"{source} is {values.dtype} {values.shape}; labels are whole numbers from 0, one per image")
    return labels.astype(np.int64)
