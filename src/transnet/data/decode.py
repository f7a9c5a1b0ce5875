"""From the bytes of an image file to the pixels a network may see.

What comes out is what an image viewer shows: the EXIF orientation is applied, transparent parts lie on white,
CMYK and palettes become RGB, 16-bit grey becomes 8-bit grey, and of an animation the first frame is taken.
Anything that cannot be read whole is a `DataError`; so is an image of more pixels than Pillow's limit
against decompression bombs, which Pillow itself would only warn about.
"""

import io
import warnings
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from transnet.data.errors import DataError, ReadError

if TYPE_CHECKING:
    from PIL import Image

Pixels = npt.NDArray[np.uint8]

# Part of every cache key: raise it whenever a change here changes pixels.
RULES = 1

_GREY = {"1", "L", "LA", "La"}
_GREY16 = {"I;16", "I;16B", "I;16L", "I;16N", "I"}
# A strip of one pixel by ten thousand would grow to gigabytes when its shorter side is enlarged.
_LONGEST = 8


def decode_image(encoded: bytes, *, check: bool = False) -> Pixels:
    """Pixels (h, w, 1) of a grey image and (h, w, 3) of any other.

    Args:
        encoded: the file's bytes, in any format that Pillow reads.
        check: also compare the checksums inside a PNG, for the one pass that looks for damage: the pixels of
            a PNG can come out complete and wrong.

    Raises:
        DataError: with the reason only; the caller knows the path. A ReadError where memory is short.
    """
    from PIL import Image, UnidentifiedImageError

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
                return _pixels(_upright(image))
    except DataError:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise DataError(
            f"more than {Image.MAX_IMAGE_PIXELS:,} pixels, as a decompression bomb has; scale it down"
        ) from error
    except UnidentifiedImageError as error:
        raise DataError("not an image in any format that Pillow reads, or its beginning is damaged") from error
    except MemoryError as error:
        raise ReadError("cannot be decoded (not enough memory)") from error
    except Exception as error:  # a decoder that is given damaged bytes raises nearly anything
        raise DataError(f"damaged or truncated ({type(error).__name__}: {error})") from error


def with_channels(pixels: Pixels, channels: int) -> Pixels:
    """The image with as many channels as its data set has: a grey image among coloured ones becomes RGB."""
    if pixels.shape[2] == channels:
        return pixels
    if pixels.shape[2] == 1:
        return np.repeat(pixels, channels, axis=2)
    raise DataError(f"has {pixels.shape[2]} channels in a data set of {channels}")


def resize_shorter(pixels: Pixels, size: int) -> Pixels:
    """The image with its shorter side at ``size`` (bilinear, antialiased); untouched where it already is.

    A strip of more than 8:1 is cut to that first, around its centre.
    """
    height, width = pixels.shape[:2]
    if min(height, width) == size and max(height, width) <= _LONGEST * size:
        return pixels
    import torch
    from torchvision.transforms.v2 import functional

    longest = _LONGEST * min(height, width)
    top, left = max(0, height - longest) // 2, max(0, width - longest) // 2
    pixels = pixels[top : top + longest, left : left + longest]
    if min(pixels.shape[:2]) == size:
        return pixels
    chw = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)
    resized = functional.resize(chw, [size], interpolation=functional.InterpolationMode.BILINEAR, antialias=True)
    return np.ascontiguousarray(resized.permute(1, 2, 0).numpy())


def square(pixels: Pixels, size: int) -> Pixels:
    """The centre square of the image with its shorter side at ``size``: what a network's view is cut out of."""
    resized = resize_shorter(pixels, size)
    top, left = (resized.shape[0] - size) // 2, (resized.shape[1] - size) // 2
    return resized[top : top + size, left : left + size]


def _upright(image: "Image.Image") -> "Image.Image":
    from PIL import ImageOps

    image.load()  # apart from the orientation: damaged pixels are an error, damaged EXIF is not
    try:
        return ImageOps.exif_transpose(image)
    except Exception:
        return image


def _pixels(image: "Image.Image") -> Pixels:
    from PIL import Image

    if image.mode in _GREY16:
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise DataError("32-bit pixels outside of 0…65535; convert it to 8 or 16 bits")
        return ((values * 255 + 32767) // 65535).astype(np.uint8)[:, :, None]
    if image.mode == "F":
        raise DataError("floating-point pixels have no agreed range; convert it to 8 or 16 bits")
    grey = image.mode in _GREY
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
        pixels = np.array(image)
        return pixels[:, :, :1] if grey else pixels
    return np.array(image.convert("L"))[:, :, None] if grey else np.array(image.convert("RGB"))
