"""Sizes and crops, which all ways to an input share."""

import numpy as np
import pytest
import torch

from data_files import noise
from transnet.data.geometry import Geometry, resize_to_cover


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
