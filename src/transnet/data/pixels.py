"""From image files to the pixels that a network sees: decoding, sizes and crops, for training and prediction alike.

A decoded image has the pixels that an image viewer shows: the EXIF orientation is applied, transparent parts become
white, CMYK and palettes become RGB, 16-bit grey becomes 8-bit grey, and an animation becomes its first frame. Sizes are
(height, width).
"""

import io
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from transnet.errors import DataError

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

Pixels = npt.NDArray[np.uint8]
Images = TypeVar("Images", Pixels, "Tensor")
Size = tuple[int, int]

# A longer strip is cut to this ratio: one of one pixel by ten thousand would grow to gigabytes when it is enlarged.
_LONGEST = 8
# Part of every cache key and of every export: raise it when a change here changes pixels.
RULES = 2

_GREY = {"1", "L", "LA", "La"}
_GREY16 = {"I;16", "I;16B", "I;16L", "I;16N", "I"}


@dataclass(frozen=True)
class Geometry:
    """How an image of any size becomes a network's input of one size."""

    size: Size  # of the network's input: a random crop in training, otherwise the centre
    stored: Size  # to which every image is resized and cut once
    pad: int = 0  # pixels of mean colour that are added on each side before a random crop

    def __post_init__(self) -> None:
        if any(size > stored + 2 * self.pad for size, stored in zip(self.size, self.stored, strict=True)):
            raise ValueError(f"size {self.size} is larger than stored {self.stored} with a padding of {self.pad}")

    @classmethod
    def square(cls, size: int, stored: int | None = None, pad: int = 0) -> "Geometry":
        """A geometry of square images; ``stored`` is ``size`` if it is left out."""
        stored = stored or size
        return cls((size, size), (stored, stored), pad)

    def scaled(self, side: int) -> "Geometry":
        """The same geometry for square inputs of another side: stored size and padding grow in proportion."""
        own = self.size[0]
        return self.square(side, round(side * self.stored[0] / own), round(self.pad * side / own))

    @property
    def streamed(self) -> "Geometry":
        """The geometry of images streamed for training: cropped, or whole if the device has to pad them first."""
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
    """The image, resized so that one side has the given length and the other at least that."""
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
    # This filter antialiases and computes with integers, so its pixels are the same on every processor.
    return np.array(image.resize(new[::-1], Image.Resampling.BILINEAR)).reshape(*new, -1)


def decode_image(encoded: bytes, *, check: bool = False) -> Pixels:
    """Pixels (h, w, 1) of a grey image and (h, w, 3) of any other, or a DataError with the reason only.

    ``check`` also compares the checksums inside a PNG, whose pixels can otherwise be complete and wrong.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    if not encoded:
        raise DataError("empty (0 bytes)")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)  # otherwise Pillow reads most bombs
            with Image.open(io.BytesIO(encoded)) as image:
                if check and image.format == "PNG":
                    with Image.open(io.BytesIO(encoded)) as second:
                        second.verify()
                image.load()
                upright: Image.Image = image
                with suppress(Exception):  # damaged EXIF is no error
                    upright = ImageOps.exif_transpose(image)
                return _pixels(upright)
    except DataError:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise DataError(f"more than {Image.MAX_IMAGE_PIXELS:,} pixels: a decompression bomb? Scale it down") from error
    except UnidentifiedImageError as error:
        raise DataError("not an image in any format that Pillow reads, or its beginning is damaged") from error
    except MemoryError as error:
        raise DataError("cannot be decoded (not enough memory)") from error
    except Exception as error:  # a decoder that is given damaged bytes raises nearly anything
        raise DataError(f"damaged or truncated ({type(error).__name__}: {error})") from error


def with_channels(pixels: Pixels, channels: int) -> Pixels:
    """The image with 1 or 3 channels: grey is repeated as RGB, RGB becomes Pillow's grey (L)."""
    from PIL import Image

    if pixels.shape[2] == channels:
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, axis=2)
    return np.array(Image.fromarray(pixels).convert("L"))[:, :, None]


def _pixels(image: "Image.Image") -> Pixels:
    from PIL import Image

    if image.mode in _GREY16:
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise DataError("its 32-bit pixels are outside of 0…65535; convert it to 8 or 16 bits")
        return ((values * 255 + 32767) // 65535).astype(np.uint8)[:, :, None]
    if image.mode == "F":
        raise DataError("floating-point pixels have no agreed range; convert it to 8 or 16 bits")
    grey = image.mode in _GREY
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
        return np.array(image)[:, :, : 1 if grey else 3]
    return np.array(image.convert("L"))[:, :, None] if grey else np.array(image.convert("RGB"))
