"""What every reader returns: images with labels, before they are checked and split."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from transnet.data.stores import Store
from transnet.errors import DataError

Rows = npt.NDArray[np.int64]

# What people call the splits, and what they are called here.
SPLIT_NAMES = {
    **{"train": "train", "training": "train"},
    **{"val": "val", "valid": "val", "validation": "val", "dev": "val"},
    **{"test": "test", "testing": "test"},
}


@dataclass(frozen=True)
class Source:
    """Images with labels as they were found.

    Attributes:
        store: all images.
        labels: one per row of the store.
        classes: the labels' names.
        splits: rows of "train", and of "val" and "test" if the data has them.
    """

    store: Store
    labels: Rows
    classes: tuple[str, ...]
    splits: dict[str, Rows]


def with_test_split(splits: dict[str, Rows]) -> dict[str, Rows]:
    """Use a lone validation split as the test set: many datasets publish no other labels to test on."""
    if "val" in splits and "test" not in splits:
        return {("test" if name == "val" else name): rows for name, rows in splits.items()}
    return splits


def class_names(source: str, labels: Rows, names: Sequence[str] | None) -> tuple[str, ...]:
    """The names of labels from 0 on: ``names``, or the numbers themselves if there are none.

    Raises:
        DataError: naming a label that is below 0, has no name, or is so large that not every number up to it can have
            an image. Then it is an id, and that many names could fill the memory.
    """
    if not len(labels):
        raise DataError(f"{source}: no image has a label")
    count = len(labels) if names is None else len(names)
    if len(wrong := labels[(labels < 0) | (labels >= count)]):
        what = f"{count} images" if names is None else f"{count} classes"
        raise DataError(f"{source}: label {wrong[0]} is out of range; {what} have labels in 0…{count - 1}")
    return tuple(map(str, range(int(labels.max()) + 1) if names is None else names))
