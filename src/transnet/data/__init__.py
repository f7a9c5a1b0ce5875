"""Data sets: from a name or a folder to images with labels, held by the device or streamed to it.

data = open_data("cifar100", val_fraction=0.1)
images = data.train.resident(data.stored_size)      # uint8 (45000, 32, 32, 3)
labels = data.train.labels
"""

from transnet.data.dataset import Augmentation, DataSet
from transnet.data.open_data import open_data
from transnet.data.split import Split
from transnet.errors import DataError

__all__ = ["Augmentation", "DataError", "DataSet", "Split", "open_data"]
