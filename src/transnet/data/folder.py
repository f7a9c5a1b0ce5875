"""Folders of image files: one folder for each class, or train/ and val/ or test/ with such folders inside."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from transnet.data.source import PART_NAMES, Source, settle_parts
from transnet.data.stores import FileStore
from transnet.errors import DataError

IMAGE_FILES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".avif", ".gif", ".bmp", ".tif", ".tiff", ".jp2", ".tga"),
    *(".ppm", ".pgm", ".pbm"),
)
# Photographs that cannot be read. Without a word of them half a data set may be missing.
OTHER_IMAGES = (".heic", ".heif", ".jxl")
_LAYOUT = "expected is one folder for each class with images in it, or train/ and val/ or test/ with such folders"


def read_folder(root: Path, *, only: Sequence[str] | None = None) -> Source:
    """Find the images of a folder of class folders, or of one with train/ and val/ or test/ inside.

    A class is all images below its folder, however deep. Hidden files, files that are no images and links
    that lead back to where they came from are passed over.

    Args:
        root: the folder.
        only: take these classes alone, in this order, from train/ and val/ alone; None takes all, by name.

    Raises:
        DataError: for no images, an empty class, fewer than two classes, parts without train/, or classes that
            differ between the parts.
    """
    folders = _subfolders(root)
    if only is not None:  # such as ImageNet, whose test/ has no labels
        folders = [name for name in folders if PART_NAMES.get(name.lower()) in ("train", "val")]
    parts = {PART_NAMES[name.lower()]: name for name in folders if name.lower() in PART_NAMES}
    if "train" not in parts:
        if folders and all(name.lower() in PART_NAMES for name in folders):
            raise DataError(f"{root}: there is {folders[0]}/, but no train/; {_LAYOUT}")
        parts = {"train": "."}
    elif len(parts) < len(folders):
        strange = sorted(set(folders) - set(parts.values()))
        raise DataError(
            f"{root}: beside {parts['train']}/ there is {strange[0]}/, which is neither a validation nor a"
            " test set; known are train/, val/ and test/"
        )
    names = {part: tuple(_subfolders(root / folder)) for part, folder in parts.items()}
    classes = tuple(only) if only is not None else names["train"]
    for part, found in names.items():
        _same_classes(root, classes, found, part, parts[part], exact=only is None)

    paths: list[str] = []
    labels: list[int] = []
    rows = {}
    for part, folder in parts.items():
        start = len(paths)
        for label, name in enumerate(classes):
            images = _images(root, Path(folder) / name)
            if unread := [path for path in images if path.lower().endswith(OTHER_IMAGES)]:
                raise DataError(
                    f"{root / unread[0]}: images of this kind cannot be read, {len(unread)} in class {name!r};"
                    " convert them, to .jpg for instance, or move them away"
                )
            paths += images
            labels += [label] * len(images)
        rows[part] = np.arange(start, len(paths))
        # Where nothing at all is found, the layout is the problem and not the first class.
        empty = sorted(set(range(len(classes))) - set(labels[start:]))
        if empty and len(paths) > start:
            raise DataError(
                f"{root / folder / classes[empty[0]]}: no images in this class; add some, or remove the"
                f" folder (image files end in {' '.join(IMAGE_FILES)})"
            )
        if empty:
            raise DataError(f"{root / folder}: no images found; {_LAYOUT}")
    if len(classes) < 2:
        raise DataError(f"{root}: only one class, {classes[0]!r}; a classifier needs two; {_LAYOUT}")
    return Source(FileStore(root, paths), np.array(labels, np.int64), classes, settle_parts(rows))


def _same_classes(
    root: Path, classes: Sequence[str], found: Sequence[str], part: str, folder: str, *, exact: bool
) -> None:
    where = root / folder
    if not found:
        raise DataError(f"{where}: no class folders in it; {_LAYOUT}")
    extra = sorted(set(found) - set(classes)) if exact else []
    if missing := sorted(set(classes) - set(found)):
        other = f", and {extra[0]!r} is there, which is not in the training set" if extra else ""
        raise DataError(
            f"{where}: {len(missing)} of {len(classes)} classes are missing, among them {missing[0]!r}{other};"
            f" every class needs a folder of its name in {folder}/"
        )
    if extra:
        raise DataError(
            f"{where}: class {extra[0]!r} is not in the training set; the classes of all parts must be the same"
        )


def _subfolders(root: Path) -> list[str]:
    try:
        with os.scandir(root) as entries:
            return sorted(entry.name for entry in entries if _wanted(entry.name) and entry.is_dir())
    except OSError as error:
        raise DataError(f"{root}: cannot be read ({error.strerror or error})") from error


def _images(root: Path, folder: Path) -> list[str]:
    return [os.path.join(folder, name) for name in images_below(root / folder)]


def images_below(root: Path) -> list[str]:
    """The image files of a folder, however deep, also those that cannot be read: paths from there, sorted.

    Hidden files and folders are passed over, and links that lead back to where they came from. A folder that cannot be
    read stands for the images in it, so that whoever reads them says so.
    """
    found = []

    def unreadable(error: OSError) -> None:
        found.append(os.path.relpath(error.filename, root))

    # A folder is entered once, and those above the class never: a link back ends there.
    visited = {str(above) for above in Path(os.path.realpath(root)).parents}
    for here, folders, files in os.walk(root, onerror=unreadable, followlinks=True):
        visited.add(os.path.realpath(here))
        folders[:] = sorted(
            name for name in folders if _wanted(name) and os.path.realpath(os.path.join(here, name)) not in visited
        )
        found += [
            os.path.relpath(os.path.join(here, name), root)
            for name in files
            if _wanted(name) and name.lower().endswith((*IMAGE_FILES, *OTHER_IMAGES))
        ]
    return sorted(found)


def _wanted(name: str) -> bool:
    return not name.startswith(".") and name != "__MACOSX"
