import re

import numpy as np
import pytest
import torch
from PIL import Image

from data_files import encoded, noise
from trained import copy_of_run, digit_files, digits_run
from transnet import load
from transnet.errors import FileError
from transnet.runs.description import Description
from transnet.ship.models import Model, open_model


def test_a_run_opens_with_its_classes_heads_and_preprocessing(tmp_path):
    model = open_model(digits_run())
    assert model.about.classes == tuple("0123456789")
    assert model.about.transforms == ("r0", "r1", "r2")
    x = torch.stack([model.prepare(path.read_bytes()) for path in digit_files(tmp_path)])
    assert x.shape == (4, 1, 8, 8)
    assert torch.equal(model.heads(x), load(digits_run()).logits(x).detach())
    assert model.net is not None


def test_images_are_prepared_as_in_training(tmp_path):
    from transnet.train.evaluate_runs import collect

    model = open_model(digits_run())
    logits = collect(digits_run(), device="cpu").views[0]
    from transnet.train.evaluate_runs import some_images

    pixels = some_images(str(digits_run()), 10**6)
    x = torch.stack([model.normalise(model.crop(image)) for image in pixels])
    assert torch.allclose(model.heads(x), logits, atol=1e-5)


def colour_model(**changes) -> Model:
    about = Description(
        **{
            "kind": "pruned", "model": "resnet8-small", "transforms": ("r0",), "classes": ("a", "b"), "channels": 3,
            "image_size": 16, "stored_size": 18, "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.2), **changes,
        }
    )  # fmt: skip
    return Model.of(about.build(), about, "here")


def test_any_image_becomes_the_size_and_channels_the_model_wants():
    model = colour_model()
    assert model.prepare(encoded(noise(0, 40, 70))).shape == (3, 16, 16)
    assert model.prepare(encoded(noise(0, 5, 5, 1), "PNG")).shape == (3, 16, 16)
    grey = colour_model(channels=1, mean=(0.5,), std=(0.2,), image_size=18)
    pixels = noise(3, 18, 18)
    luma = np.asarray(Image.fromarray(pixels).convert("L")).astype(int)
    assert np.abs(grey.crop(pixels)[:, :, 0].astype(int) - luma).max() <= 1
    cropped = model.crop(pixels)
    assert np.array_equal(cropped, pixels[1:17, 1:17])
    x = model.normalise(cropped)
    assert torch.allclose(x[1], (torch.from_numpy(cropped[:, :, 1] / 255.0).float() - 0.4) / 0.2, atol=1e-5)


@pytest.mark.parametrize("name", ["model.pt", "model.pth", "pytorch_model.bin", "model.ckpt", "model.pkl", "model.pt2"])
def test_files_that_could_run_code_are_not_opened(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\x04.")
    with pytest.raises(FileError, match="can run code in it"):
        open_model(tmp_path / name)


@pytest.mark.parametrize(
    "source", ["hf:", "hf:name", "hf:../etc/passwd", "hf:a/../b", "hf:/etc/x", "hf:a/b/c", "hf:a/b@../../x"]
)
def test_only_repository_names_are_looked_up_on_the_hub(source):
    with pytest.raises(FileError, match="not a repository; hf:owner/name"):
        open_model(source)


def test_other_paths_are_refused_with_the_kinds_of_models(tmp_path):
    for path in (tmp_path, tmp_path / "nothing", tmp_path / "notes.txt"):
        if path.suffix:
            path.write_text("hello")
        with pytest.raises(FileError, match=r"a model is a run's folder, an exported folder, an .onnx file or hf:"):
            open_model(path)


def test_a_weights_file_is_refused_with_its_folder():
    with pytest.raises(FileError, match=re.escape(f"give their folder, {digits_run()}")):
        open_model(digits_run() / "model.safetensors")


def test_a_run_without_weights_is_refused(tmp_path):
    run = copy_of_run(tmp_path / "run")
    (run / "model.safetensors").unlink()
    with pytest.raises(FileError, match="only its result was kept"):
        open_model(run)
    (run / "result.json").unlink()
    with pytest.raises(FileError, match="the run is not finished"):
        open_model(run)
