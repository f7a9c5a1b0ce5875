"""Pixels that fit in memory: ``.npz`` files, and scikit-learn's digits."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transnet.data.decode import Pixels
from transnet.data.source import Rows, Source, class_names, settle_parts
from transnet.data.stores import ArrayStore
from transnet.errors import DataError

_PARTS = ("train", "val", "test")
_LAYOUT = (
    "expected are the arrays x and y, or images and labels, or x_train y_train x_test y_test [x_val y_val], or"
    " train_images train_labels and so on, and optionally classes, the names"
)


def read_digits() -> Source:
    """scikit-learn's 1,797 handwritten digits of 8 × 8 pixels: needs no download, trains in seconds."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = np.rint(images.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    return Source(
        ArrayStore(pixels, "digits"),
        labels.astype(np.int64),
        tuple(map(str, range(10))),
        {"train": np.arange(len(labels))},
    )


def read_npz(path: Path) -> Source:
    """Read an ``.npz`` of images (N, H, W) or (N, H, W, C), C 1 or 3, and labels (N,).

    Without ``classes`` (an array of strings) a class is called by its number. Pixels are uint8; other numbers
    are taken where they lie in 0…255. Pickled objects are never read.

    Raises:
        DataError: for anything else.
    """
    arrays = _load(path)
    parts = {part: found for part in _PARTS if (found := _part(path, arrays, part)) is not None}
    whole = [pair for pair in (("x", "y"), ("X", "y"), ("images", "labels")) if set(pair) <= set(arrays)]
    if not parts and whole:
        parts = {"train": whole[0]}
    if "train" not in parts:
        raise DataError(f"{path}: no training images in {' '.join(arrays) or 'an empty file'}; {_LAYOUT}")

    images = {part: _images(f"{path}: {x}", arrays[x]) for part, (x, _) in parts.items()}
    labels = {part: _labels(f"{path}: {y}", arrays[y]) for part, (_, y) in parts.items()}
    shape = images["train"].shape[1:]
    rows: dict[str, Rows] = {}
    start = 0
    for part, (x, y) in parts.items():
        if images[part].shape[1:] != shape:
            raise DataError(f"{path}: {x} has images of {images[part].shape[1:]}, the training set of {shape}")
        if len(images[part]) != len(labels[part]):
            raise DataError(f"{path}: {len(images[part])} images in {x}, but {len(labels[part])} labels in {y}")
        rows[part] = np.arange(start, start + len(labels[part]))
        start += len(labels[part])
    every = np.concatenate(list(labels.values()))
    classes = _classes(path, arrays, every)
    pixels = np.concatenate(list(images.values()))
    return Source(ArrayStore(pixels, str(path)), every, classes, settle_parts(rows))


def _load(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise DataError(f"{path}: one array, not an .npz; {_LAYOUT}")
        with file:
            return {name: file[name] for name in file.files}
    except DataError:
        raise
    except (OSError, EOFError, zipfile.BadZipFile, MemoryError, NotImplementedError) as error:
        raise DataError(f"{path}: not a whole .npz ({error}); save it with numpy.savez") from error
    except Exception as error:  # zlib and the header's parser have errors of their own
        pickled = "pickle" in str(error)
        why = "holds pickled objects, which may run code and are not read" if pickled else f"is damaged ({error})"
        raise DataError(f"{path}: {why}; save plain arrays of numbers and strings with numpy.savez") from error


def _part(path: Path, arrays: dict[str, npt.NDArray[Any]], part: str) -> tuple[str, str] | None:
    for x, y in ((f"x_{part}", f"y_{part}"), (f"{part}_images", f"{part}_labels")):
        if x in arrays and y in arrays:
            return x, y
        if x in arrays or y in arrays:
            raise DataError(f"{path}: there is {x if x in arrays else y}, but no {y if x in arrays else x}; {_LAYOUT}")
    return None


def _images(where: str, values: npt.NDArray[Any]) -> Pixels:
    images = values[..., None] if values.ndim == 3 else values
    if images.ndim != 4 or images.shape[3] not in (1, 3) or 0 in images.shape:
        hint = (
            "; transpose(0, 2, 3, 1) puts the channels last" if values.ndim == 4 and values.shape[1] in (1, 3) else ""
        )
        raise DataError(f"{where} has shape {values.shape}; images are (N, H, W), (N, H, W, 1) or (N, H, W, 3){hint}")
    if images.dtype == np.uint8:
        return np.ascontiguousarray(images)
    if images.dtype.kind not in "uif":
        raise DataError(f"{where} has type {images.dtype}; pixels are numbers, best uint8")
    low, high = images.min(), images.max()
    if not (low >= 0 and high <= 255):  # also where one is not a number
        raise DataError(f"{where} has values from {low} to {high}; pixels lie in 0…255: scale them and save uint8")
    if images.dtype.kind == "f" and high <= 1:
        raise DataError(f"{where} has values in 0…1; pixels lie in 0…255: multiply by 255, round and save uint8")
    return np.rint(images).astype(np.uint8)


def _labels(where: str, values: npt.NDArray[Any]) -> Rows:
    labels = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if labels.ndim != 1:
        raise DataError(f"{where} has shape {values.shape}; labels are one number for each image, (N,)")
    if labels.dtype.kind not in "ui":
        raise DataError(f"{where} has type {values.dtype}; labels are whole numbers from 0")
    return labels.astype(np.int64)


def _classes(path: Path, arrays: dict[str, npt.NDArray[Any]], labels: Rows) -> tuple[str, ...]:
    if "classes" in arrays and (arrays["classes"].ndim != 1 or arrays["classes"].dtype.kind not in "US"):
        raise DataError(f"{path}: classes is not a list of strings, but {arrays['classes'].dtype}")
    if "classes" in arrays:
        return class_names(str(path), labels, arrays["classes"].astype(np.str_).tolist())
    return class_names(str(path), labels, None)
