"""Datasets: from a name or a folder to images with labels that a device holds or a stream delivers.

data = open_data("cifar100", val_fraction=0.1)
images = data.train.resident(data.geometry.stored)      # uint8 (45000, 32, 32, 3)
labels = data.train.labels
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transnet.data.dataset import DataSet, Split
    from transnet.data.open import open_data

__all__ = ["DataSet", "Split", "open_data"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Only now: the command line's help reads the catalog and must not wait for torch.
    return getattr(import_module(f"{__name__}.{'open' if name == 'open_data' else 'dataset'}"), name)
