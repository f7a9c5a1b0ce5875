"""Warnings about settings that are allowed but may not be what the user meant."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from small_runs import images_file, settings
from transnet.data import open_data
from transnet.runs.config import TrainConfig
from transnet.train.trainer import train
from transnet.train.user_warnings import (
    imbalance_notes,
    setup_warnings,
    transform_warnings,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images_file(tmp_path_factory.mktemp("warnings") / "images.npz")


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        (("r0", "m0"), ["m0 and r0"]), (("r1", "m3"), ["m3 and r1"]), (("r2", "m2"), ["m2 and r2"]),
        (("r3", "m1"), ["m1 and r3"]), (("r0", "r1", "r2", "r3"), []), (("r0", "r0"), []), (("r0", "m1", "m2"), []),
        (("r0", "m0", "r1", "m3"), ["m0 and r0", "m3 and r1"]),
    ],
)  # fmt: skip
def test_transforms_that_flipped_images_make_one_task_are_found(names: tuple[str, ...], pairs: list[str]) -> None:
    warnings = [warning for warning in transform_warnings(names, flip=True) if "one task for two heads" in warning]
    assert len(warnings) == len(pairs)
    assert all(f"so {pair} are" in warning for pair, warning in zip(pairs, warnings, strict=True))
    assert not any("flipped" in warning for warning in transform_warnings(names, flip=False))


def test_unusual_transforms_get_a_warning(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(settings(data, tmp_path / "run", transforms="r1,r2", epochs=1))
    printed = capfd.readouterr().err
    assert re.search("warning: there is no identity head r0, .*one pass.*folded", printed)
    assert transform_warnings(("r0", "r1"), flip=True) == []
    note, warning = transform_warnings(("r0", "r0", "m0"), flip=True)
    assert note == 'note: r0 has several heads for one task, as in the paper\'s "Architecture only"'
    assert "so m0 and r0 are one task" in warning


@pytest.mark.parametrize(("names", "rotate", "noted"), [
    (("r0", "r1"), ("r0", "r1", "r2", "r3"), ["r1"]), (("r0", "r1", "m2"), ("m2", "r1"), ["r1", "m2"]),
    (("r0", "r1"), ("r0", "r2"), []), (("r0",), ("r0", "r1"), []),
])  # fmt: skip
def test_a_head_whose_transform_is_also_an_augmentation_gets_a_note(
    names: tuple[str, ...], rotate: tuple[str, ...], noted: list[str]
) -> None:
    found = transform_warnings(names, flip=False, rotate=rotate)
    assert [note.split()[1] for note in found if "`rotate`" in note] == noted


def warnings_for(data: Path, *, val_fraction: float = 0.0, **changes: Any) -> str:
    config = TrainConfig.for_data(str(data), "run", **{"model": "resnet8-small", "batch_size": 32, **changes})
    return "\n".join(setup_warnings(config, open_data(str(data), val_fraction=val_fraction), flip=False))


def test_suitable_settings_get_no_warning(data: Path) -> None:
    assert warnings_for(data, val_fraction=0.2) == ""
    assert warnings_for(data, batch_size=150) == ""


def test_a_batch_of_more_than_all_images_gets_a_note(data: Path) -> None:
    assert "`batch_size` 151 is more than all training images: an epoch is one step" in warnings_for(
        data, batch_size=151
    )


def test_the_recipes_learning_rate_gets_a_note_with_pretrained_weights(data: Path) -> None:
    rate = TrainConfig.for_data(str(data), "run").lr
    assert f"note: `lr` {rate:g} is the recipe's" in warnings_for(data, pretrained=True)
    assert "`lr`" not in warnings_for(data, pretrained=True, lr=rate / 2)


@pytest.mark.parametrize(
    ("model", "side"), [("timm:resnet18", 224), ("torchvision:resnet18", 224), ("timm:resnetv2_50", 224)]
)
def test_images_far_smaller_than_a_model_was_made_for_get_a_note(data: Path, model: str, side: int) -> None:
    assert f"{model} was made for images of {side}×{side} and sees 8×8; `image_size` {side}" in warnings_for(
        data, model=model
    )


def test_images_near_a_models_size_get_no_note(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (8, 113, 113, 3), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", x_train=x, y_train=np.arange(8) % 2)
    assert warnings_for(tmp_path / "x.npz", model="timm:resnet18", batch_size=4) == ""


def test_classes_without_an_image_in_the_validation_split_are_counted(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (42, 8, 8, 1), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", x_train=x, y_train=np.array([0, 1] * 20 + [2, 2]))
    printed = warnings_for(tmp_path / "x.npz", val_fraction=0.2, batch_size=4)
    assert "note: classes without an image in the validation split: 1 of 3" in printed


def test_a_subset_with_a_single_image_of_a_class_gets_a_note(data: Path) -> None:
    config = TrainConfig.for_data(str(data), "run", model="resnet8-small", batch_size=4)
    for fraction, noted in ((0.001, True), (0.02, True), (0.1, False), (1.0, False)):
        config, opened = replace(config, train_fraction=fraction), open_data(str(data), train_fraction=fraction)
        said = "\n".join(setup_warnings(config, opened, flip=False))
        assert ("note: `train_fraction` leaves a single image in 3 of 3 classes" in said) == noted


def test_an_imbalanced_training_set_gets_a_note(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (50, 8, 8, 1), dtype=np.uint8)
    np.savez(
        tmp_path / "x.npz",
        x_train=x,
        y_train=np.minimum(np.arange(50) % 10, 1),
        x_test=x[:10],
        y_test=np.arange(10) % 2,
    )
    printed = warnings_for(tmp_path / "x.npz", batch_size=4)
    assert printed.startswith("note: the training set is imbalanced: 5 images of 0 and 45 images of 1; ")


@pytest.mark.parametrize(
    ("counts", "imbalanced"), [((30, 10), False), ((31, 10), True), ((5, 0), True), ((10, 30, 20), False)]
)
def test_more_than_three_to_one_is_imbalanced(counts: tuple[int, ...], imbalanced: bool) -> None:
    assert bool(imbalance_notes([f"c{i}" for i in range(len(counts))], counts)) == imbalanced
