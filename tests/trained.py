"""A small trained run, made once per session, and image files for it."""

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from transnet.runs import recipes
from transnet.runs.config import from_dict
from transnet.train.trainer import train


@cache
def digits_run(transforms: str = "r0,r1,r2", model: str = "resnet8-small", **settings: object) -> Path:
    """The folder of a finished run on digits, shared by all calls with the same arguments."""
    folder = Path(tempfile.mkdtemp(prefix="transnet-test-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ.setdefault("TRANSNET_CACHE", str(folder / "cache"))
    standard = {"epochs": 4, "val_fraction": 0.1, "tensorboard": False, "device": "cpu", "evaluate_every": 0}
    config = {**recipes.settings("fast", "digits"), **standard, **settings, "transforms": transforms, "model": model}
    train(from_dict({**config, "data": "digits", "out": str(folder / "run")}), quiet=True)
    return folder / "run"


def copy_of_run(target: Path, run: Path | None = None) -> Path:
    """A copy of the run that a test may change."""
    shutil.copytree(run or digits_run(), target)
    return target


def digit_files(folder: Path, n: int = 4) -> list[Path]:
    """Digits as PNG files, named after their class and number."""
    folder.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    paths = [folder / f"{digits.target[i]}-{i}.png" for i in range(n)]
    for path, pixels in zip(paths, digits.images, strict=False):
        Image.fromarray((pixels * 255 / 16).astype(np.uint8)).save(path)
    return paths
