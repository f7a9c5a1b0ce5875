"""The check of all images: files and arrays give the same records, which are computed once."""

import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest

from data_files import encoded, noise
from small_runs import environment
from transnet.data.source import ArrayStore, FileStore
from transnet.data.survey import statistics, survey


@pytest.mark.parametrize("channels", [1, 3])
def test_files_and_arrays_agree(tmp_path: Path, channels: int) -> None:
    images = np.stack([noise(seed, 9, 14, channels) for seed in range(5)])
    for i, image in enumerate(images):
        (tmp_path / f"{i}.png").write_bytes(encoded(image))
    from_files = survey(FileStore(tmp_path, [f"{i}.png" for i in range(5)]), progress=False)[0]
    from_array = survey(ArrayStore(images, "x"), progress=False)[0]
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
    assert survey(FileStore(tmp_path, ["0.png", "1.png", "2.png", "no.png"]), progress=False)[0]["bad"].tolist() == [
        False,
        True,
        False,
        True,
    ]


class Disk(FileStore):
    """Files that look unchanged while some of them are away."""

    key = "unchanged"

    def __init__(self, root: Path, paths: list[str], away: Collection[int]) -> None:
        super().__init__(root, paths)
        self.away = away

    def where(self, row: int) -> str:
        return str(self.root / "away") if row in self.away else super().where(row)


def check(root: Path, away: Collection[int]) -> list[tuple[bool, bool]]:
    records = survey(Disk(root, [f"{i}.png" for i in range(4)], away), progress=False)[0]
    return list(zip(records["bad"].tolist(), (records["height"] == 12).tolist()))


def test_image_that_could_not_be_read_is_checked_again(tmp_path: Path) -> None:
    for i in range(4):
        (tmp_path / f"{i}.png").write_bytes(encoded(noise(i))[: 80 if i == 1 else None])
    bad, good = (True, False), (False, True)
    assert check(tmp_path, away={0, 3}) == [bad, bad, good, bad]
    assert check(tmp_path, away={3}) == [good, bad, good, bad]
    for away in ((), range(4)):  # good images are not read again
        assert check(tmp_path, away) == [good, bad, good, good]


# A small file of many pixels, for which there is room until the limit is set.
SHORT_OF_MEMORY = """
import io, resource, sys
from pathlib import Path
from PIL import Image
from transnet.data.source import FileStore
from transnet.data.survey import survey
root = Path(sys.argv[1])
Image.new("RGB", (8000, 8000)).save(root / "0.png")
def check():
    records = survey(FileStore(root, ["0.png"]), progress=False)[0][0]
    print(records["bad"], records["height"])
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, resource.RLIM_INFINITY))
check()
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
check()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how much memory is used")
def test_image_is_checked_again_after_a_lack_of_memory(tmp_path: Path) -> None:
    words = [sys.executable, "-c", SHORT_OF_MEMORY, str(tmp_path)]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True 0", "False 8000"]


def test_images_of_all_sizes_have_the_same_weight(tmp_path: Path) -> None:
    for i, side in enumerate((2, 20)):
        (tmp_path / f"{i}.png").write_bytes(encoded(np.full((side, side, 1), 255 * i, np.uint8)))
    mean, std = statistics(survey(FileStore(tmp_path, ["0.png", "1.png"]), progress=False)[0], 1)
    assert (mean, std) == ((0.5,), (0.5,))
