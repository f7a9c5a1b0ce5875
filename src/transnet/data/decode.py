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

from transnet.data.errors import ReadError
from transnet.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

Pixels = npt.NDArray[np.uint8]

# Part of every cache key: raise it whenever a change here changes pixels.
RULES = 2

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


def to_grey(pixels: Pixels) -> Pixels:
    """A colour image as Pillow's grey, for a model of grey images."""
    from PIL import Image

    return pixels if pixels.shape[2] == 1 else np.array(Image.fromarray(pixels).convert("L"))[:, :, None]


def resize_shorter(pixels: Pixels, size: int) -> Pixels:
    """The image with its shorter side at ``size``; untouched if it already is.

    Pillow's bilinear filter antialiases and uses integers only, so its pixels are the same on every processor, and
    whoever has Pillow can reproduce them. A strip of more than 8:1 is cut to that first, around its centre.
    """
    from PIL import Image

    height, width = pixels.shape[:2]
    shorter, longest = min(height, width), _LONGEST * min(height, width)
    if shorter == size and max(height, width) <= longest:
        return pixels
    pixels = _centre(pixels, min(height, longest), min(width, longest))
    height, width = (side * size // shorter for side in pixels.shape[:2])
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    return np.array(image.resize((width, height), Image.Resampling.BILINEAR)).reshape(height, width, -1)


def square(pixels: Pixels, size: int) -> Pixels:
    """The centre square of the image with its shorter side at ``size``: what a network's view is cut out of."""
    return _centre(resize_shorter(pixels, size), size, size)


def _centre(pixels: Pixels, height: int, width: int) -> Pixels:
    top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
    return pixels[top : top + height, left : left + width]


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
