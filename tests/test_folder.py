"""Folders of images: what is found, ignored and refused."""

import os
from pathlib import Path

import pytest
from PIL import Image

from data_files import class_folder, encoded, noise
from transnet.data import open_data
from transnet.data.folder import read_folder
from transnet.errors import DataError


def test_class_folders_are_the_classes_in_order_of_their_names(tmp_path: Path) -> None:
    source = read_folder(class_folder(tmp_path / "pets", ("dog", "cat"), n=3))
    assert source.classes == ("cat", "dog")
    assert source.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert source.store.where(5).endswith("dog/2.png")


def test_images_are_found_at_any_depth(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "pets", n=2)
    (root / "cat" / "tabby" / "old").mkdir(parents=True)
    (root / "cat" / "tabby" / "old" / "x.JPG").write_bytes(encoded(noise(0), "JPEG"))
    assert read_folder(root).labels.tolist() == [0, 0, 0, 1, 1]


def test_other_files_are_ignored(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "pets", n=2)
    (root / ".git").mkdir()
    (root / "__MACOSX").mkdir()
    (root / "README.md").write_text("pets")
    for name in (".DS_Store", "Thumbs.db", "._0.png", "notes.txt", "labels.csv"):
        (root / "cat" / name).write_text("no image")
    source = read_folder(root)
    assert source.classes == ("cat", "dog")
    assert len(source.store) == 4


@pytest.mark.parametrize("ending", ["heic", "HEIF", "jxl"])
def test_kinds_of_photographs_that_pillow_cannot_read_are_named(tmp_path: Path, ending: str) -> None:
    root = class_folder(tmp_path / "pets", n=2)
    for i in range(3):
        (root / "dog" / f"{i}.{ending}").write_bytes(b"a photograph")
    with pytest.raises(DataError, match=rf"dog/0\.{ending}: 3 images of this class are of a kind that cannot be read"):
        read_folder(root)


@pytest.mark.parametrize("ending", ["avif", "jp2", "tga"])
def test_less_common_image_formats_are_read(tmp_path: Path, ending: str) -> None:
    root = class_folder(tmp_path / "pets", n=4)
    Image.fromarray(noise(9)).save(root / "dog" / f"other.{ending}")
    data = open_data(str(root))
    assert len(data.train) + len(data.test) == 9


def test_links_back_to_a_parent_folder_are_ignored(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "pets", n=2)
    os.symlink(root / "cat", root / "cat" / "again")
    os.symlink(root, root / "dog" / "up")
    assert read_folder(root).labels.tolist() == [0, 0, 1, 1]


def test_linked_class_folder_is_followed(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "pets", n=2)
    class_folder(tmp_path / "elsewhere", ("bird",), n=3, seed=5)
    os.symlink(tmp_path / "elsewhere" / "bird", root / "bird")
    assert read_folder(root).labels.tolist() == [0, 0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("folders", "sizes"),
    [
        (("train",), (2, None, 2)),
        (("train", "val"), (4, None, 6)),
        (("Train", "Validation"), (4, None, 6)),
        (("train", "test"), (4, None, 6)),
        (("train", "val", "test"), (4, 6, 8)),
    ],
)
def test_splits(tmp_path: Path, folders: tuple[str, ...], sizes: tuple[int | None, ...]) -> None:
    for i, folder in enumerate(folders):
        class_folder(tmp_path / folder, n=2 + i, seed=10 * i)
    data = open_data(str(tmp_path))
    assert (len(data.train), data.val and len(data.val), len(data.test)) == sizes


def refused(root: Path, match: str) -> None:
    with pytest.raises(DataError, match=match):
        open_data(str(root))


def test_classes_that_differ_are_refused(tmp_path: Path) -> None:
    class_folder(tmp_path / "train", ("cat", "dog"), n=2)
    class_folder(tmp_path / "val", ("cat", "cow"), n=2)
    refused(tmp_path, "1 of 2 classes are missing, among them 'dog', and class 'cow' is not in the training set")
    (tmp_path / "val" / "cow").rename(tmp_path / "val" / ".cow")
    refused(tmp_path, "val: 1 of 2 classes are missing, among them 'dog'; every split")
    (tmp_path / "val" / ".cow").rename(tmp_path / "val" / "dog")
    class_folder(tmp_path / "val", ("more",), n=2)
    refused(tmp_path, "val: class 'more' is not in the training set")


def test_empty_class_is_refused(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "pets", n=2)
    (root / "emu").mkdir()
    (root / "emu" / "readme.txt").write_text("none")
    refused(root, "emu: no images in this class")


def test_one_class_is_refused(tmp_path: Path) -> None:
    refused(class_folder(tmp_path / "pets", ("cat",), n=4), "only one class, 'cat'.* one folder for each class")


def test_folder_without_class_folders_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "no class folders")


@pytest.mark.parametrize("folders", [("test", "val"), ("Test",), ("val", "valid")])
def test_splits_without_training_images_are_refused(tmp_path: Path, folders: tuple[str, ...]) -> None:
    for folder in folders:
        class_folder(tmp_path / folder, n=2)
    refused(tmp_path, f"there is {folders[0]}/, but no train/")


def test_class_may_have_the_name_of_a_split(tmp_path: Path) -> None:
    assert read_folder(class_folder(tmp_path / "drives", ("test", "race"), n=2)).classes == ("race", "test")


def test_unknown_split_is_refused(tmp_path: Path) -> None:
    class_folder(tmp_path / "train", n=2)
    class_folder(tmp_path / "extra", n=2)
    refused(tmp_path, "there is extra/")
