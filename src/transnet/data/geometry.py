"""Sizes and crops of images: one implementation for resident, streamed and predicted images.

Sizes are (height, width).
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

Pixels = npt.NDArray[np.uint8]
Images = TypeVar("Images", Pixels, "Tensor")
Size = tuple[int, int]

# A strip of one pixel by ten thousand would grow to gigabytes when its shorter side is enlarged.
_LONGEST = 8


@dataclass(frozen=True)
class Geometry:
    """How an image of any size becomes a network's input of one size.

    Every image is resized and cut to ``stored`` once. Training crops ``size`` out of that at random, evaluation takes
    the centre.
    """

    size: Size  # of the network's input
    stored: Size  # at which images are held
    pad: int = 0  # pixels of mean colour that are added on each side before a random crop

    def __post_init__(self) -> None:
        if any(size > stored + 2 * self.pad for size, stored in zip(self.size, self.stored, strict=True)):
            raise ValueError(f"size {self.size} is larger than stored {self.stored} with a padding of {self.pad}")

    @classmethod
    def square(cls, size: int, stored: int | None = None, pad: int = 0) -> "Geometry":
        """A geometry of square images; ``stored`` is ``size`` if it is left out."""
        stored = size if stored is None else stored
        return cls((size, size), (stored, stored), pad)

    def scaled(self, side: int) -> "Geometry":
        """The same geometry for square inputs of another side: stored size and padding grow in proportion."""
        own = self.size[0]
        return self.square(side, round(side * self.stored[0] / own), round(self.pad * side / own))

    @property
    def streamed(self) -> "Geometry":
        """The geometry of images streamed for training: cropped, or whole if a crop needs padding.

        The device adds the padding, because only there are pixels normalised, so that the mean colour is zero.
        """
        return replace(self, size=self.stored, pad=0) if self.pad else self

    def fit(self, pixels: Pixels) -> Pixels:
        """The image as it is stored: resized so that it just covers ``stored``, then cut to the centre."""
        return centre(resize_to_cover(pixels, self.stored), self.stored)

    def centre(self, images: Images) -> Images:
        """The centre crop of stored images (…, H, W, C), for evaluation."""
        return centre(images, self.size)

    def corners(self, crop: "Tensor") -> "tuple[Tensor, Tensor]":
        """First rows (B,) and columns (B,) of the crops at ``Plan.crop``; negative ones begin in the padding."""
        top, left = (
            (crop[:, axis] * (self.stored[axis] + 2 * self.pad - self.size[axis] + 1)).floor().long() - self.pad
            for axis in (0, 1)
        )
        return top, left


def centre(images: Images, size: Size) -> Images:
    """The centre of images (…, H, W, C), at most of that size."""
    (height, width), (h, w) = images.shape[-3:-1], size
    top, left = max(height - h, 0) // 2, max(width - w, 0) // 2
    return images[..., top : top + h, left : left + w, :]


def resize_to_cover(pixels: Pixels, size: Size) -> Pixels:
    """The image, resized so that one side has the given length and the other at least that.

    Pillow's bilinear filter antialiases and computes with integers, so its pixels are the same on every processor. A
    strip of more than 8:1 is first cut to that, around its centre.
    """
    from PIL import Image

    longest = _LONGEST * min(pixels.shape[:2])
    pixels = centre(pixels, (longest, longest))
    height, width = pixels.shape[:2]
    if height * size[1] <= width * size[0]:
        new = size[0], width * size[0] // height
    else:
        new = height * size[1] // width, size[1]
    if new == (height, width):
        return pixels
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    return np.array(image.resize(new[::-1], Image.Resampling.BILINEAR)).reshape(*new, -1)
