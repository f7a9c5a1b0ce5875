"""Runs small enough to be trained many times in a test: a few hundred 8×8 images, a few thousand weights."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from transnet.runs.config import TrainConfig
from transnet.runs.records import encode
from transnet.study.file import Study, read_study

if TYPE_CHECKING:  # imported where it is used: the method's tests also run with versions of torch that cannot train
    from transnet.train.trainer import Trainer

SOURCE = Path(__file__).parents[1] / "src"


def images_file(path: Path, *, n: int = 150, test: int = 40, size: int = 8, channels: int = 1, seed: int = 0) -> Path:
    """An ``.npz`` of three separable classes: noise with a bright stripe at one of three heights."""
    random = np.random.default_rng(seed)
    arrays: dict[str, Any] = {}
    for part, count in (("train", n), ("test", test)):
        y = np.arange(count) % 3
        x = random.integers(0, 120, (count, size, size, channels), dtype=np.uint8)
        for image, label in zip(x, y, strict=True):
            image[label * 2 : label * 2 + 2] += 100
        arrays |= {f"x_{part}": x, f"y_{part}": y}
    np.savez(path, **arrays)
    return path


def settings(data: Path | str, out: Path, **changes: Any) -> TrainConfig:
    defaults: dict[str, Any] = {
        "data": str(data), "out": str(out), "epochs": 3, "batch_size": 32, "lr": 0.05, "device": "cpu",
        "tensorboard": False, "model": "resnet8-small",
    }  # fmt: skip
    return TrainConfig(**{**defaults, **changes})


def run(data: Path | str, out: Path, model: nn.Module | None = None, **changes: Any) -> dict[str, Any]:
    """Train, and return the content of ``result.json``."""
    from transnet.train.trainer import train

    return encode(train(settings(data, out, **changes), model=model, quiet=True))


def trainer(data: Path | str, out: Path, model: nn.Module | None = None, **changes: Any) -> "Trainer":
    """A prepared trainer, in this process and on the CPU."""
    from transnet.train.setup import Launch, prepare
    from transnet.train.trainer import Trainer

    return Trainer(prepare(Launch.of(settings(data, out, **changes), model=model, quiet=True)))


def weights(out: Path) -> str:
    """A hash of a finished run's weights."""
    return hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()


def epochs_written(out: Path) -> list[int]:
    return [json.loads(line)["epoch"] for line in (out / "metrics.jsonl").read_text().splitlines()]


def small_study(target: str = "invariance", *, seeds: int = 1, data: str = "digits", **train: Any) -> Study:
    """A built-in study of digits with few images, one epoch per run by default."""
    few = {"epochs": 1, "train_fraction": 0.1, "device": "cpu", "checkpoint_every": 1}
    return read_study(target).changed(data=data, seeds=seeds, train={**few, **train})


class Plain(nn.Module):
    """A small network without batch norm, with optional dropout.

    Args:
        stop_at: send this process SIGINT, as Ctrl-C does, in this training step (counted from 1).
        kill_at: end it with SIGKILL.
    """

    def __init__(
        self, *, dropout: float = 0.0, classes: int = 3, channels: int = 1, width: int = 6, stop_at: int = 0,
        kill_at: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, padding=1)
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(width * 16, classes)
        self.signals = {stop_at: signal.SIGINT, kill_at: signal.SIGKILL}
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.steps += 1
            if self.steps in self.signals:
                os.kill(os.getpid(), self.signals[self.steps])
        x = torch.nn.functional.adaptive_avg_pool2d(torch.relu(self.conv(x)), 4)
        return self.fc(self.drop(x.flatten(1)))


def plain(seed: int = 0, **options: Any) -> Plain:
    torch.manual_seed(seed)
    return Plain(**options)


def normalised() -> nn.Module:
    """A network with batch norm on maps of one pixel, which a single image cannot train."""
    layers = (nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 3))
    return nn.Sequential(*layers)


def stopped_run(data: Path | str, out: Path, *, step: int, model: dict[str, Any] | None = None, **changes: Any) -> None:
    """A run of `Plain` that Ctrl-C ended in a step, with its ``state/``."""
    from transnet.train.interrupt import Stopped

    with pytest.raises(Stopped):
        run(data, out, plain(stop_at=step, **(model or {})), **changes)


def environment() -> dict[str, str]:
    """The environment of processes that a test starts: this source code, no GPU."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SOURCE), str(Path(__file__).parent)]),
        "CUDA_VISIBLE_DEVICES": "",
    }


@contextmanager
def inherited_sigint(handler: signal.Handlers) -> Iterator[None]:
    """Give child processes this handler: `SIG_DFL` as in a terminal, or `SIG_IGN` as under nohup, cron or ``&``."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def command(*words: Any, **options: Any) -> "subprocess.Popen[str]":
    """Start ``python …``."""
    return subprocess.Popen(
        [sys.executable, *map(str, words)], env=environment(), text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, **options,
    )  # fmt: skip


def wait_for(condition: Any, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.05)


def workers(out: Path) -> list[int]:
    """Processes that hold a file of the study open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            held = [os.readlink(link) for link in (process / "fd").iterdir()]
        except OSError:
            continue
        if int(process.name) != os.getpid() and any(str(out) in link for link in held):
            found.append(int(process.name))
    return found
