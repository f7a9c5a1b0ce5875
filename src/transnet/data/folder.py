"""Folders of image files: one folder for each class, or train/ and val/ or test/ with such folders inside."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from transnet.data.source import SPLIT_NAMES, FileStore, Source
from transnet.errors import DataError

_IMAGE_FILES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".avif", ".gif", ".bmp", ".tif", ".tiff", ".jp2", ".tga"),
    *(".ppm", ".pgm", ".pbm"),
)
# Photographs that Pillow cannot read. If they were ignored, half a dataset might be missing.
_OTHER_IMAGES = (".heic", ".heif", ".jxl")
_LAYOUT = "expected is one folder for each class with images in it, or train/ and val/ or test/ with such folders"


def read_folder(root: Path, *, only: Sequence[str] | None = None) -> Source:
    """Find the images of a folder of class folders, or of one with train/ and val/ or test/ inside.

    A class consists of all images below its folder. With ``only``, these classes are read, in this order, from train/
    and val/; otherwise all, ordered by name.
    """
    splits = _splits(root, ("train", "val") if only else ("train", "val", "test"))
    classes = only or _subfolders(root / splits["train"])
    if not classes:
        raise DataError(f"{root}: no class folders in it; {_LAYOUT}")
    for folder in splits.values():
        _check_classes(root / folder, classes, exact=not only)
    paths: list[str] = []
    labels: list[int] = []
    rows = {}
    for split, folder in splits.items():
        images = [_images(root, Path(folder, name)) for name in classes]
        if empty := [name for name, found in zip(classes, images) if not found]:
            endings = " ".join(_IMAGE_FILES)
            raise DataError(f"{root / folder / empty[0]}: no images in this class (they end in {endings}); {_LAYOUT}")
        rows[split] = np.arange(len(paths), len(paths) + sum(map(len, images)))
        paths += [path for found in images for path in found]
        labels += [label for label, found in enumerate(images) for _ in found]
    return Source(FileStore(root, paths), np.array(labels, np.int64), tuple(classes), rows)


def images_below(root: Path) -> list[str]:
    """The image files below a folder, also those of kinds that cannot be read: relative paths, sorted.

    Hidden files and links back to a folder above are ignored. A folder that cannot be read is listed like an image,
    so that reading the images raises an error for it.
    """
    found: list[str] = []
    unreadable: list[OSError] = []
    # No folder is visited twice, and those above never, so a link back is not followed.
    visited = {str(above) for above in Path(os.path.realpath(root)).parents}
    for folder, subfolders, names in os.walk(root, onerror=unreadable.append, followlinks=True):
        visited.add(os.path.realpath(folder))
        subfolders[:] = sorted(
            name for name in subfolders if _shown(name) and os.path.realpath(os.path.join(folder, name)) not in visited
        )
        images = (name for name in names if _shown(name) and name.lower().endswith((*_IMAGE_FILES, *_OTHER_IMAGES)))
        found += [os.path.join(folder, name) for name in images]
    return sorted(os.path.relpath(path, root) for path in (*found, *(error.filename for error in unreadable)))


def _splits(root: Path, known: Sequence[str]) -> dict[str, str]:
    """The folder of each split, relative to the root; ``known`` are the splits to read."""
    folders = _subfolders(root)
    splits = {SPLIT_NAMES[name.lower()]: name for name in folders if SPLIT_NAMES.get(name.lower()) in known}
    if "train" not in splits:
        if splits and all(name.lower() in SPLIT_NAMES for name in folders):
            raise DataError(f"{root}: there is {folders[0]}/, but no train/; {_LAYOUT}")
        return {"train": "."}
    unknown = set(folders) - set(splits.values())
    if unknown and "test" in known:
        raise DataError(f"{root}: there is {min(unknown)}/ beside {splits['train']}/; known are train/, val/ and test/")
    return splits


def _check_classes(folder: Path, classes: Sequence[str], *, exact: bool) -> None:
    """Refuse a split without the training set's classes or, if ``exact``, with others."""
    found = set(_subfolders(folder))
    missing, extra = sorted(set(classes) - found), sorted(found - set(classes)) if exact else []
    problems = [f"{len(missing)} of {len(classes)} classes are missing, among them {missing[0]!r}"] if missing else []
    problems += [f"class {extra[0]!r} is not in the training set"] if extra else []
    if problems:
        raise DataError(f"{folder}: {', and '.join(problems)}; every split needs one folder for each class")


def _subfolders(root: Path) -> list[str]:
    try:
        with os.scandir(root) as entries:
            return sorted(entry.name for entry in entries if _shown(entry.name) and entry.is_dir())
    except OSError as error:
        raise DataError(f"{root}: cannot be read ({error})") from error


def _images(root: Path, folder: Path) -> list[str]:
    images = [os.path.join(folder, name) for name in images_below(root / folder)]
    if unreadable := [path for path in images if path.lower().endswith(_OTHER_IMAGES)]:
        found = f"{len(unreadable)} images of this class"
        raise DataError(f"{root / unreadable[0]}: {found} are of a kind that cannot be read; convert them to .jpg")
    return images


def _shown(name: str) -> bool:
    return not name.startswith(".") and name != "__MACOSX"
