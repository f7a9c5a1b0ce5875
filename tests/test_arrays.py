"""Arrays as datasets: .npz files."""

import io
from pathlib import Path

import numpy as np
import pytest

from transnet.data import open_data
from transnet.data.pixels import Geometry
from transnet.errors import DataError


def images(n: int = 20, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, 16, 16, channels), dtype=np.uint8)


LABELS = np.arange(20) % 2


def saved(tmp_path: Path, **arrays: object) -> str:
    path = tmp_path / "toy.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return str(path)


def test_x_and_y_are_split(tmp_path: Path) -> None:
    data = open_data(saved(tmp_path, x=images(), y=LABELS, classes=np.array(["cat", "dog"])))
    assert (data.name, data.classes) == ("toy", ("cat", "dog"))
    assert (len(data.train), len(data.test), data.val) == (16, 4, None)
    assert data.geometry == Geometry.square(16, pad=2)


def test_given_splits_are_kept(tmp_path: Path) -> None:
    x = images()
    ranges = {"train": slice(0, 10), "val": slice(10, 16), "test": slice(16, 20)}
    arrays = {f"x_{part}": x[rows] for part, rows in ranges.items()}
    arrays |= {f"y_{part}": LABELS[rows] for part, rows in ranges.items()}
    data = open_data(saved(tmp_path, **arrays))
    assert np.array_equal(data.test.resident((16, 16)).numpy(), x[16:])
    assert data.val is not None
    assert np.array_equal(data.val.decode(0), x[10])
    assert data.val.labels.tolist() == LABELS[10:16].tolist()


def test_images_and_labels_by_their_other_names(tmp_path: Path) -> None:
    x = images(channels=1)[..., 0]
    y = LABELS[:, None]
    data = open_data(saved(tmp_path, train_images=x, train_labels=y, val_images=x[:4], val_labels=y[:4]))
    assert (data.channels, len(data.train), len(data.test)) == (1, 20, 4)


@pytest.mark.parametrize("names", [("x", "y"), ("X", "y"), ("images", "labels")])
def test_one_set_by_any_of_its_names(tmp_path: Path, names: tuple[str, str]) -> None:
    x, y = names
    assert len(open_data(saved(tmp_path, **{x: images(), y: LABELS})).train) == 16


def test_whole_numbers_of_other_types_are_read(tmp_path: Path) -> None:
    x = images()
    floats = x.astype(np.float32)
    data = open_data(saved(tmp_path, x_train=floats, y_train=LABELS, x_test=floats[:2], y_test=LABELS[:2]))
    assert np.array_equal(data.train.resident((16, 16)).numpy(), x)


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"a": LABELS}, "no training images in a; expected are the arrays x and y"),
        ({"x_train": images(), "y": LABELS}, "no y_train"),
        ({"x": images(), "y": LABELS[:19]}, "20 images in x, but 19 labels in y"),
        ({"x": images().transpose(0, 3, 1, 2), "y": LABELS}, r"transpose\(0, 2, 3, 1\)"),
        ({"x": images()[0, 0], "y": LABELS}, "images are"),
        ({"x": images() / 255.0, "y": LABELS}, "values from 0.0 to 1.0; pixels are in 0…255"),
        ({"x": images() * 2.0, "y": LABELS}, "pixels are in 0…255"),
        ({"x": images() - 1.0, "y": LABELS}, "values from -1.0"),
        ({"x": np.where(images() == 0, np.nan, 7.0), "y": LABELS}, "pixels are in 0…255"),
        ({"x": images(), "y": LABELS - 1}, "label -1 is out of range"),
        ({"x": images(), "y": LABELS * 0 - 2}, "label -2 is out of range"),
        ({"x": images(), "y": LABELS * 10**10 + 7}, "label 10000000007 is out of range; 20 images"),
        ({"x": images(), "y": LABELS * 20}, "label 20 is out of range"),
        ({"x": images(), "y": LABELS, "classes": np.array(["cat"])}, "label 1 is out of range; 1 classes"),
        ({"x": images(), "y": LABELS * 1.0}, "labels are whole numbers"),
        ({"x": images(), "y": np.eye(20)}, "whole numbers from 0, one per image"),
        ({"x": images(), "y": LABELS * 0}, "only one class"),
        ({"x": images(), "y": LABELS * 2}, "no training images for 1 of 3 classes, among them '1'"),
        ({"x": images(), "y": LABELS, "classes": np.array([1, 2])}, "not a list of strings"),
        ({"x": np.array([object()], dtype=object), "y": LABELS}, "pickled objects"),
        ({"x": images().astype(str), "y": LABELS}, "pixels are numbers"),
        ({"x": images(0), "y": LABELS[:0]}, "images are"),
    ],
)
def test_unusable_arrays_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray], match: str) -> None:
    with pytest.raises(DataError, match=match):
        open_data(saved(tmp_path, **arrays))


def test_damaged_npz_is_refused(tmp_path: Path) -> None:
    path = Path(saved(tmp_path, x=images(), y=LABELS))
    whole = path.read_bytes()
    array = io.BytesIO()
    np.save(array, images())  # an .npy
    hole = whole[:2000] + bytes(100) + whole[2100:]
    for damaged in (whole[: len(whole) // 2], b"", b"nonsense", hole, array.getvalue()):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"toy\.npz"):
            open_data(str(path))
