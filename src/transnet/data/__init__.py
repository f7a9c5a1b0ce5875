"""Datasets: from a name or a folder to images with labels that a device holds or a stream delivers.

data = open_data("cifar100", val_fraction=0.1)
images = data.train.resident(data.geometry.stored)      # uint8 (45000, 32, 32, 3)
labels = data.train.labels
"""

from importlib import import_module
from typing import TYPE_CHECKING

# Resolved on first use: the command line's help reads the catalog and must not wait for torch.
_HOME = {"DataSet": "dataset", "Split": "dataset", "open_data": "open"}
__all__ = ["DataSet", "Split", "open_data"]

if TYPE_CHECKING:
    from transnet.data.dataset import DataSet, Split
    from transnet.data.open import open_data


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
