"""What every kind of data comes to before it is made a data set."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from transnet.data.stores import Store

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
