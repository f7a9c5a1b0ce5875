"""Every kind of image file becomes the pixels that a viewer shows, or a clear error; sizes and crops are shared."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from data_files import encoded, noise
from transnet.data.pixels import Geometry, decode_image, resize_to_cover, with_channels
from transnet.errors import DataError


def saved(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "PPM", "WEBP"])
def test_lossless_colour_is_kept(format: str) -> None:
    pixels = noise(0, 7, 9)
    options = {"lossless": True} if format == "WEBP" else {}
    assert np.array_equal(decode_image(encoded(pixels, format, **options)), pixels)


def test_jpeg_is_close() -> None:
    pixels = np.full((16, 16, 3), (200, 100, 50), np.uint8)
    assert np.abs(decode_image(encoded(pixels, "JPEG")).astype(int) - pixels).max() <= 3


def test_grey_stays_one_channel() -> None:
    pixels = noise(1, channels=1)
    assert np.array_equal(decode_image(encoded(pixels)), pixels)


def test_black_and_white_becomes_0_and_255() -> None:
    image = Image.fromarray(noise(1, channels=1)[:, :, 0]).convert("1")
    pixels = decode_image(saved(image))
    assert pixels.shape[2] == 1
    assert set(np.unique(pixels)) == {0, 255}


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_16_bit_grey_is_scaled(format: str) -> None:
    values = np.array([[0, 257, 32768, 65535]], np.uint16)
    assert decode_image(saved(Image.fromarray(values), format))[0, :, 0].tolist() == [0, 1, 128, 255]


def test_32_bit_beyond_16_bits_is_refused() -> None:
    image = Image.fromarray(np.array([[70000]], np.int32))
    with pytest.raises(DataError, match="0…65535"):
        decode_image(saved(image, "TIFF"))


def test_floating_point_is_refused() -> None:
    with pytest.raises(DataError, match="floating-point"):
        decode_image(saved(Image.fromarray(np.ones((2, 2), np.float32)), "TIFF"))


def test_cmyk_becomes_rgb() -> None:
    image = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    red = decode_image(saved(image, "TIFF"))
    assert red.shape == (8, 8, 3)
    assert red[0, 0].tolist() == [255, 0, 0]
    assert decode_image(saved(image, "JPEG")).shape == (8, 8, 3)


def test_palette_becomes_rgb() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putdata([0, 1])
    assert decode_image(saved(image))[0].tolist() == [[10, 20, 30], [40, 50, 60]]


def test_transparent_palette_entry_is_white() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putdata([0, 1])
    assert decode_image(saved(image, transparency=0))[0].tolist() == [[255, 255, 255], [40, 50, 60]]


def test_hidden_colour_under_transparency_is_not_seen() -> None:
    image = Image.new("RGBA", (1, 1), (200, 0, 0, 0))
    assert decode_image(saved(image))[0, 0].tolist() == [255, 255, 255]


def test_grey_with_alpha_stays_grey() -> None:
    assert decode_image(saved(Image.new("LA", (2, 2), (0, 255)))).shape == (2, 2, 1)


def test_animation_gives_its_first_frame() -> None:
    first, second = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
    pixels = decode_image(saved(first, "GIF", save_all=True, append_images=[second]))
    assert pixels[0, 0].tolist() == [255, 0, 0]


def test_exif_orientation_is_applied() -> None:
    pixels = noise(3, 8, 16)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be rotated clockwise by 90°
    turned = decode_image(saved(Image.fromarray(pixels), "PNG", exif=exif))
    assert np.array_equal(turned, np.rot90(pixels, -1))


def test_broken_exif_is_ignored() -> None:
    data = encoded(noise(4), "JPEG", exif=b"Exif\0\0nonsense")
    assert decode_image(data).shape == (12, 12, 3)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "BMP", "TIFF"])
def test_truncated_file_is_refused(format: str) -> None:
    data = encoded(noise(5, 64, 64), format)
    with pytest.raises(DataError, match=r"truncated|damaged"):
        decode_image(data[: len(data) * 2 // 3])


def test_bit_flips_in_a_png_are_found() -> None:
    data = encoded(noise(6, 32, 32))
    for position in range(60, len(data) - 20, 97):
        flipped = bytearray(data)
        flipped[position] ^= 4
        with pytest.raises(DataError):
            decode_image(bytes(flipped), check=True)


def test_bytes_that_are_no_image_are_refused() -> None:
    with pytest.raises(DataError, match=r"empty \(0 bytes\)"):
        decode_image(b"")
    with pytest.raises(DataError, match="not an image"):
        decode_image(b"hello, world" * 10)


@pytest.mark.parametrize("side", [11_000, 60_000])  # Pillow warns about the first and refuses the second
def test_decompression_bombs_are_refused(side: int) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    bomb = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    with pytest.raises(DataError, match="bomb"):
        decode_image(bomb)


def test_grey_becomes_rgb() -> None:
    assert (with_channels(np.full((2, 2, 1), 7, np.uint8), 3) == np.full((2, 2, 3), 7)).all()


def test_rgb_becomes_pillows_grey() -> None:
    pixels = noise(0)
    assert np.array_equal(with_channels(pixels, 1)[:, :, 0], np.array(Image.fromarray(pixels).convert("L")))


# ---------------------------------------------------------------------------------------------------- sizes and crops


@pytest.mark.parametrize(
    ("image", "size", "resized"),
    [
        ((20, 40), (10, 10), (10, 20)),
        ((40, 20), (30, 30), (60, 30)),
        ((20, 40), (10, 30), (15, 30)),
        ((20, 40), (30, 10), (30, 60)),
        ((1, 5000), (64, 64), (64, 512)),  # a long strip does not explode
        ((4, 5000), (4, 4), (4, 32)),
    ],
)
def test_resized_image_just_covers_the_size(
    image: tuple[int, int], size: tuple[int, int], resized: tuple[int, int]
) -> None:
    assert resize_to_cover(noise(0, *image), size).shape == (*resized, 3)
    assert Geometry(size, size).fit(noise(0, *image)).shape == (*size, 3)


def test_right_size_keeps_its_pixels() -> None:
    pixels = noise(0, 20, 40)
    assert np.array_equal(resize_to_cover(pixels, (20, 20)), pixels)


def test_resizing_is_antialiased() -> None:
    stripes = np.zeros((64, 64, 1), np.uint8)
    stripes[:, ::2] = 255
    assert np.abs(resize_to_cover(stripes, (16, 16)).astype(int) - 127).max() < 40


def test_stored_image_is_the_centre() -> None:
    pixels = noise(0, 10, 16)
    assert np.array_equal(Geometry.square(10).fit(pixels), pixels[:, 3:13])


def test_arrays_and_tensors_have_the_same_centre() -> None:
    geometry, images = Geometry((4, 7), (9, 12)), noise(0, 9, 12)[None]
    assert np.array_equal(geometry.centre(images), images[:, 2:6, 2:9])
    assert np.array_equal(geometry.centre(torch.from_numpy(images)).numpy(), geometry.centre(images))


def test_another_side_scales_the_rest() -> None:
    assert Geometry.square(224, stored=256).scaled(112) == Geometry.square(112, stored=128)
    assert Geometry.square(32, pad=4).scaled(64) == Geometry.square(64, pad=8)


def test_input_larger_than_what_is_stored_is_refused() -> None:
    with pytest.raises(ValueError, match="larger than stored"):
        Geometry.square(17, stored=16)
