"""What every kind of data comes to before it is made a data set."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from transnet.data.stores import Store
from transnet.errors import DataError

Rows = npt.NDArray[np.int64]

# What people call the parts, and what they are called here.
PART_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}


@dataclass(frozen=True)
class Source:
    """Images with labels as they were found, not yet looked at.

    Attributes:
        store: all images.
        labels: one a row of the store.
        classes: the labels' names.
        parts: rows of "train", and of "val" and "test" where the data says so.
    """

    store: Store
    labels: Rows
    classes: tuple[str, ...]
    parts: dict[str, Rows]


def settle_parts(parts: dict[str, Rows]) -> dict[str, Rows]:
    """A lone validation part is the test set: many data sets publish no other labels to test on."""
    if "val" in parts and "test" not in parts:
        return {("test" if name == "val" else name): rows for name, rows in parts.items()}
    return parts


def class_names(where: str, labels: Rows, names: Sequence[str] | None) -> tuple[str, ...]:
    """The classes that labels from 0 stand for: ``names``, or where there are none the numbers themselves.

    Raises:
        DataError: naming a label that is below 0, has no name, or is so large that not every number up to it
            can have an image: then it is an id, and as many names could fill the memory.
    """
    if not len(labels):
        raise DataError(f"{where}: no image has a label")
    count = len(labels) if names is None else len(names)
    if len(wrong := labels[(labels < 0) | (labels >= count)]):
        what = f"{count} images" if names is None else f"{count} classes"
        raise DataError(f"{where}: label {wrong[0]} is out of range; {what} have labels in 0…{count - 1}")
    return tuple(map(str, range(int(labels.max()) + 1) if names is None else names))
