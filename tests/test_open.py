"""open_data: splits, sizes, statistics, fingerprints and errors."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from data_files import class_folder, encoded, noise
from transnet.data import DataSet, Split, open_data
from transnet.data.pixels import Geometry
from transnet.errors import DataError


def images_of(split: Split | None) -> set[bytes]:
    assert split is not None
    return {split.decode(i).tobytes() for i in range(len(split))}


def test_digits() -> None:
    data = open_data("digits")
    assert (data.name, data.classes, data.channels) == ("digits", tuple("0123456789"), 1)
    assert (len(data.train), len(data.test), data.val) == (1438, 359, None)
    assert (data.geometry, data.flip) == (Geometry.square(8, pad=1), False)
    images = data.train.resident((8, 8))
    assert (images.dtype, images.shape) == (torch.uint8, (1438, 8, 8, 1))
    assert (images.min(), images.max()) == (0, 255)
    assert data.train.resident_bytes((8, 8)) == images.numel()
    assert data.mean == pytest.approx([images.double().mean().item() / 255])
    assert data.std == pytest.approx([images.double().std(correction=0).item() / 255])


def test_test_set_never_depends_on_the_seed_and_is_stratified() -> None:
    first, second = open_data("digits", val_fraction=0.1), open_data("digits", val_fraction=0.3, seed=7)
    assert first.test.fingerprint == second.test.fingerprint
    share = torch.bincount(first.test.labels) / 0.2 / torch.bincount(open_data("digits").train.labels) * 0.8
    assert ((share - 1).abs() < 0.05).all()


def test_validation_images_come_from_the_training_images() -> None:
    whole, cut = open_data("digits"), open_data("digits", val_fraction=0.25)
    assert cut.val is not None
    assert len(cut.train) + len(cut.val) == len(whole.train)
    assert images_of(cut.train) | images_of(cut.val) == images_of(whole.train)
    assert not images_of(cut.val) & images_of(cut.test)
    shares = torch.bincount(cut.val.labels) / torch.bincount(whole.train.labels)
    assert ((shares - 0.25).abs() < 0.01).all()


def test_validation_depends_only_on_its_seed() -> None:
    def val(**options: int) -> str:
        split = open_data("digits", val_fraction=0.1, **options).val  # type: ignore[arg-type]
        assert split is not None
        return split.fingerprint

    assert val() == val(seed=0)
    assert val() != val(seed=1)


def test_statistics_are_those_of_the_training_images_without_validation(tmp_path: Path) -> None:
    data = open_data(str(class_folder(tmp_path / "pets")), val_fraction=0.25)
    pixels = data.train.resident((12, 12)).double() / 255
    assert data.mean == pytest.approx(pixels.mean((0, 1, 2)).tolist())
    assert data.std == pytest.approx(pixels.std((0, 1, 2), correction=0).tolist())


def test_constant_images_can_be_normalised(tmp_path: Path) -> None:
    for name, value in (("black", 0), ("dark", 1)):
        (tmp_path / name).mkdir()
        for i in range(3):
            (tmp_path / name / f"{i}.png").write_bytes(encoded(np.full((8, 8, 1), value, np.uint8)))
    assert open_data(str(tmp_path)).std == (1 / 255,)


def test_test_set_does_not_depend_on_the_names_of_the_files(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "pets")
    before = images_of(open_data(str(root)).test)
    for path in root.glob("cat/*.png"):
        path.rename(path.with_name(f"{99 - int(path.stem)}.png"))
    assert images_of(open_data(str(root)).test) == before


@pytest.mark.parametrize(
    ("shape", "given", "geometry"),
    [
        ((32, 32, 3), None, Geometry.square(32, pad=4)),
        ((32, 32, 1), None, Geometry.square(32, pad=4)),
        ((32, 32, 3), 64, Geometry.square(64, pad=8)),
        ((64, 64, 3), None, Geometry.square(64, pad=8)),
        ((32, 40, 3), None, Geometry.square(32, stored=37)),
        ((96, 120, 3), None, Geometry.square(96, stored=110)),
        ((300, 280, 3), None, Geometry.square(224, stored=256)),
        ((300, 280, 3), 112, Geometry.square(112, stored=128)),
    ],
)
def test_geometry_of_unnamed_datasets(
    tmp_path: Path, shape: tuple[int, int, int], given: int | None, geometry: Geometry
) -> None:
    for c in range(2):
        (tmp_path / str(c)).mkdir()
        for i in range(2):
            colours = np.array([10 * c + i, 200, 90], np.uint8)[: shape[2]]
            (tmp_path / str(c) / f"{i}.png").write_bytes(encoded(np.full(shape, colours)))
    data = open_data(str(tmp_path), image_size=given)
    assert (data.geometry, data.flip) == (geometry, shape[2] == 3)
    assert data.channels == shape[2]
    assert data.square == (shape[0] == shape[1])


@pytest.mark.parametrize("stored", ["png", "npz"])
def test_grey_images_are_not_flipped_though_they_are_stored_as_rgb(tmp_path: Path, stored: str) -> None:
    random = np.random.default_rng(0)
    grey = random.integers(0, 256, (8, 23, 23, 1), dtype=np.uint8)
    for name, coloured in (("grey", 0), ("one-in-colour", 1)):
        images = np.repeat(grey, 3, axis=3)
        images[:coloured, 0, 0, 0] ^= 1
        place = tmp_path / name
        if stored == "npz":
            place = place.with_suffix(".npz")
            np.savez(place, x_train=images, y_train=np.arange(8) % 2)
        else:
            for i, image in enumerate(images):
                (place / str(i % 2)).mkdir(parents=True, exist_ok=True)
                (place / str(i % 2) / f"{i}.png").write_bytes(encoded(image))
        data = open_data(str(place))
        assert data.channels == 3
        assert data.flip == bool(coloured)


def test_one_coloured_image_makes_all_rgb(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "pets", n=4)
    for i in range(4):
        (root / "cat" / f"{i}.png").write_bytes(encoded(noise(i, channels=1)))
    data = open_data(str(root))
    assert data.channels == 3
    assert data.train.resident((12, 12)).shape[3] == 3
    assert data.train.decode(0).shape == (12, 12, 3)


def damaged(tmp_path: Path) -> tuple[Path, Path]:
    root = class_folder(tmp_path / "pets")
    bad = root / "dog" / "3.jpg"
    bad.write_bytes(encoded(noise(0, 64, 64), "JPEG")[:900])
    return root, bad


def test_bad_image_stops_with_its_path(tmp_path: Path) -> None:
    root, bad = damaged(tmp_path)
    with pytest.raises(DataError, match="1 of 21 images cannot be read") as caught:
        open_data(str(root))
    assert str(bad) in str(caught.value)
    assert "`on_bad_image`" in str(caught.value)


def test_bad_images_are_named_up_to_ten(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "pets")
    bad = [root / "cat" / f"bad{i:02}.png" for i in range(12)]
    for path in bad:
        path.write_bytes(b"no picture")
    with pytest.raises(DataError, match="12 of 32 images") as caught:
        open_data(str(root))
    assert [str(path) in str(caught.value) for path in bad] == [True] * 10 + [False] * 2
    assert "and 2 more" in str(caught.value)


def test_bad_image_is_skipped_and_counted(tmp_path: Path) -> None:
    root, bad = damaged(tmp_path)
    data = open_data(str(root), on_bad_image="skip")
    assert data.skipped == (str(bad),)
    bad.unlink()
    assert open_data(str(root)).fingerprint == data.fingerprint


def test_repaired_image_is_checked_again(tmp_path: Path) -> None:
    root, bad = damaged(tmp_path)
    with pytest.raises(DataError):
        open_data(str(root))
    bad.write_bytes(encoded(noise(0), "JPEG"))
    assert open_data(str(root)).skipped == ()


def test_reason_is_given_each_time(tmp_path: Path) -> None:
    root, _ = damaged(tmp_path)
    (root / "cat" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    for _ in range(2):
        with pytest.raises(DataError, match=r"2 of 22 .*/gone\.png: cannot be read \(.*No such file"):
            open_data(str(root))
    (root / "cat" / "gone.png").unlink()
    for _ in range(2):
        with pytest.raises(DataError, match=r"1 of 21 .*/3\.jpg: damaged or truncated"):
            open_data(str(root))


def test_class_that_skipping_empties_is_refused(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "pets", ("cat", "dog", "emu"), n=2)
    for path in root.glob("emu/*"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match="no training images for 1 of 3 classes, among them 'emu'"):
        open_data(str(root), on_bad_image="skip")


@pytest.mark.usefixtures("permissions_count")
def test_unreadable_image_is_named(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "pets")
    (root / "cat" / "1.png").chmod(0)
    with pytest.raises(DataError, match="Permission denied"):
        open_data(str(root))


@pytest.mark.usefixtures("permissions_count")
def test_a_folder_without_read_permission_is_named_and_not_left_out(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "pets")
    locked = class_folder(root / "cat" / "more") / "cat"
    locked.chmod(0)
    try:
        with pytest.raises(DataError, match=r"more/cat: cannot be read \(.*Permission denied"):
            open_data(str(root))
    finally:
        locked.chmod(0o700)


def test_fingerprint_is_that_of_the_contents(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "pets")
    before = open_data(str(root))
    assert open_data(str(shutil.copytree(root, tmp_path / "copy"))).fingerprint == before.fingerprint
    for options in ({"val_fraction": 0.2}, {"image_size": 24}):
        assert open_data(str(root), **options).fingerprint != before.fingerprint  # type: ignore[arg-type]
    (root / "cat" / "0.png").write_bytes(encoded(noise(4711)))
    assert open_data(str(root)).fingerprint != before.fingerprint


def test_given_validation_set_is_kept(tmp_path: Path) -> None:
    for i, part in enumerate(("train", "val", "test")):
        class_folder(tmp_path / part, n=3, seed=100 * i)
    data: DataSet = open_data(str(tmp_path))
    assert data.val is not None
    assert len(data.val) == 6
    with pytest.raises(DataError, match="has a validation set"):
        open_data(str(tmp_path), val_fraction=0.1)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"data": "cifar-100"}, "did you mean cifar100"),
        ({"data": "Digits"}, "did you mean digits"),
        ({"data": ""}, "none given"),
        ({"data": "no/such/thing"}, "known names are digits cifar10"),
        ({"data": "~nobody-of-that-name/pets"}, "~nobody-of-that-name/pets: no such name"),
        ({"data": "digits", "val_fraction": 1.0}, r"not in \[0, 1\)"),
        ({"data": "digits", "val_fraction": -0.1}, r"not in \[0, 1\)"),
        ({"data": "digits", "image_size": 0}, "0 is no size"),
        ({"data": "digits", "on_bad_image": "ignore"}, "known are stop and skip"),
        ({"data": "digits", "label_column": "y"}, "only parquet shards"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], match: str) -> None:
    with pytest.raises(DataError, match=match) as caught:
        open_data(**options)  # type: ignore[arg-type]
    assert caught.value.field == list(options)[-1]


def test_close_name_of_a_folder_is_suggested(tmp_path: Path) -> None:
    class_folder(tmp_path / "flowers")
    with pytest.raises(DataError, match=r"did you mean .*flowers\?"):
        open_data(str(tmp_path / "flower"))


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "images.zip").write_bytes(b"")
    with pytest.raises(DataError, match=r"not a folder and not an \.npz"):
        open_data(str(tmp_path / "images.zip"))


def test_class_of_one_image_cannot_be_split(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "pets")
    class_folder(root, ("emu",), n=1, seed=9)
    with pytest.raises(DataError, match="'emu' has one image"):
        open_data(str(root))


@pytest.mark.parametrize("fraction", [0.01, 0.5, 0.9])
def test_share_of_the_training_images_keeps_one_of_every_class(tmp_path: Path, fraction: float) -> None:
    class_folder(tmp_path / "train", n=10)
    class_folder(tmp_path / "test", ("cat", "dog", "emu"), n=2, seed=70)
    class_folder(tmp_path / "train", ("emu",), n=1, seed=90)
    data = open_data(str(tmp_path), train_fraction=fraction)
    assert torch.bincount(data.train.labels).tolist() == [max(1, round(10 * fraction))] * 2 + [1]


def test_the_subset_has_a_seed_of_its_own() -> None:
    def splits(**options: int) -> list[str]:
        data = open_data("digits", train_fraction=0.2, val_fraction=0.1, **options)
        return [part.fingerprint for part in (data.train, data.val, data.test)]

    first, other = splits(subset_seed=0), splits(subset_seed=1)
    assert first[0] != other[0]
    assert first[1:] == other[1:]
    assert splits() == first == splits(subset_seed=0)
    assert splits(seed=3)[0] == splits(seed=3, subset_seed=3)[0]
    assert open_data("digits", subset_seed=5).fingerprint == open_data("digits").fingerprint


def test_importing_is_light() -> None:
    code = (
        "import sys, transnet.data;"
        "print([m for m in ('torchvision', 'PIL', 'pyarrow', 'sklearn', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
