"""Decode image files to the pixels that an image viewer shows.

The EXIF orientation is applied, transparent parts become white, CMYK and palettes become RGB, 16-bit grey becomes
8-bit grey, and an animation becomes its first frame. An image that cannot be read completely is a `DataError`; so is
one with more pixels than Pillow's limit against decompression bombs, about which Pillow itself would only warn.
"""

import io
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from transnet.data.geometry import Pixels
from transnet.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

# Part of every cache key and of every export: raise it when a change here or in `geometry` changes pixels.
RULES = 2

_GREY = {"1", "L", "LA", "La"}
_GREY16 = {"I;16", "I;16B", "I;16L", "I;16N", "I"}


def decode_image(encoded: bytes, *, check: bool = False) -> Pixels:
    """Pixels (h, w, 1) of a grey image and (h, w, 3) of any other, in any format that Pillow reads.

    Args:
        encoded: the file's bytes.
        check: also compare the checksums inside a PNG, whose pixels can otherwise be complete and wrong.

    Raises:
        DataError: with the reason only; the caller knows the path.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    if not encoded:
        raise DataError("empty (0 bytes)")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
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
        raise DataError(
            f"more than {Image.MAX_IMAGE_PIXELS:,} pixels, as a decompression bomb has; scale it down"
        ) from error
    except UnidentifiedImageError as error:
        raise DataError("not an image in any format that Pillow reads, or its beginning is damaged") from error
    except MemoryError as error:
        raise DataError("cannot be decoded (not enough memory)") from error
    except Exception as error:  # a decoder that is given damaged bytes raises nearly anything
        raise DataError(f"damaged or truncated ({type(error).__name__}: {error})") from error


def with_channels(pixels: Pixels, channels: int) -> Pixels:
    """The image with as many channels as a network takes: grey is repeated as RGB, RGB becomes Pillow's grey (L)."""
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
