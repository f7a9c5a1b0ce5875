"""Finished runs, evaluated again: on the data that they were trained on, or on other data."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from small_runs import images_file, run
from transnet.data.cache import cache_folder
from transnet.data.dataset import Split
from transnet.train.evaluate_runs import evaluate_runs


def image_folder(arrays: Path, root: Path, *, colour: bool) -> Path:
    """The images of an ``.npz`` as a folder of PNG files."""
    with np.load(arrays) as file:
        for split in ("train", "test"):
            for i, (x, y) in enumerate(zip(file[f"x_{split}"], file[f"y_{split}"], strict=True)):
                (root / split / str(y)).mkdir(parents=True, exist_ok=True)
                image = Image.fromarray(x[:, :, 0])
                (image.convert("RGB") if colour else image).save(root / split / str(y) / f"{i:03}.png")
    return root


def test_a_model_of_grey_images_takes_colour_images_as_predict_does(tmp_path: Path) -> None:
    arrays = images_file(tmp_path / "x.npz")
    result = run(arrays, tmp_path / "run")
    folder = image_folder(arrays, tmp_path / "colour", colour=True)
    again = evaluate_runs([str(tmp_path / "run")], data=str(folder), device="cpu")[str(tmp_path / "run")]
    assert again.plain.full.accuracy == result["test"]["full"]["accuracy"]
    assert again.plain.full.loss == pytest.approx(result["test"]["full"]["loss"])


def test_what_training_streamed_is_streamed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = image_folder(images_file(tmp_path / "x.npz"), tmp_path / "grey", colour=False)
    result = run(folder, tmp_path / "run", storage="stream", workers=0)
    before = set(cache_folder().iterdir())
    monkeypatch.setattr(Split, "resident", None)
    again = evaluate_runs([str(tmp_path / "run")], device="cpu")[str(tmp_path / "run")]
    assert again.plain.full.loss == pytest.approx(result["test"]["full"]["loss"])
    assert set(cache_folder().iterdir()) == before
