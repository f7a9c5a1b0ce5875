"""The look at every image: the same findings from files as from arrays, and taken once."""

from pathlib import Path

import numpy as np
import pytest

from data_files import encoded, noise
from transnet.data.stores import ArrayStore, FileStore
from transnet.data.survey import statistics, survey


@pytest.mark.parametrize("channels", [1, 3])
def test_files_and_arrays_agree(tmp_path: Path, channels: int) -> None:
    images = np.stack([noise(seed, 9, 14, channels) for seed in range(5)])
    for i, image in enumerate(images):
        (tmp_path / f"{i}.png").write_bytes(encoded(image))
    from_files = survey(FileStore(tmp_path, [f"{i}.png" for i in range(5)]), progress=False)
    from_array = survey(ArrayStore(images, "x"), progress=False)
    for field in ("height", "width", "grey", "bad"):
        assert np.array_equal(from_files[field], from_array[field]), field
    for field in ("mean", "square"):
        assert from_files[field] == pytest.approx(from_array[field], abs=1e-12)
    mean, std = statistics(from_array, channels)
    assert mean == pytest.approx((images / 255).mean((0, 1, 2)))
    assert std == pytest.approx((images / 255).std((0, 1, 2)))


def test_bad_image_is_marked_and_the_others_are_not(tmp_path: Path) -> None:
    for i in range(3):
        (tmp_path / f"{i}.png").write_bytes(encoded(noise(i)))
    (tmp_path / "1.png").write_bytes(encoded(noise(1))[:80])
    assert survey(FileStore(tmp_path, ["0.png", "1.png", "2.png", "no.png"]), progress=False)["bad"].tolist() == [
        False,
        True,
        False,
        True,
    ]


def test_images_of_all_sizes_count_the_same(tmp_path: Path) -> None:
    for i, side in enumerate((2, 20)):
        (tmp_path / f"{i}.png").write_bytes(encoded(np.full((side, side, 1), 255 * i, np.uint8)))
    mean, std = statistics(survey(FileStore(tmp_path, ["0.png", "1.png"]), progress=False), 1)
    assert (mean, std) == ((0.5,), (0.5,))
