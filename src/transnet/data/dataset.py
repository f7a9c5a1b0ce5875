"""A dataset, as training and evaluation see it."""

from dataclasses import dataclass

from transnet.data.geometry import Geometry
from transnet.data.split import Split


@dataclass(frozen=True)
class DataSet:
    """Images in their splits, and how a network sees them; `transnet.data.open_data` creates one.

    Attributes:
        name: the name that was given, or that of the folder or file.
        classes: the labels' names.
        channels: 1 if all images are grey, otherwise 3.
        geometry: sizes and padding.
        flip: whether training flips images left-right; a flipped digit would be no digit.
        square: whether all images are as wide as they are high. Of others the network sees the centre square.
        mean: of each channel in 0…1, over the training images (without the validation split) before resizing.
        std: likewise.
        train: images to train on.
        val: images to select on, or None.
        test: images to measure on, and for nothing else.
        skipped: the images that were left out because they could not be read.
        fingerprint: a hash of the images' contents, order, labels and splits and of how a network sees them. Two runs
            with equal fingerprints used the same data.
    """

    name: str
    classes: tuple[str, ...]
    channels: int
    geometry: Geometry
    flip: bool
    square: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train: Split
    val: Split | None
    test: Split
    skipped: tuple[str, ...]
    fingerprint: str

    @property
    def image_size(self) -> int:
        """Side of the square that the network sees."""
        return self.geometry.size[0]

    @property
    def stored_size(self) -> int:
        """Side of the stored square that it is cropped from."""
        return self.geometry.stored[0]
