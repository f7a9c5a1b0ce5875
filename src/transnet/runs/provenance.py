"""Where a run comes from: its settings, command, versions and commit, so that anyone can repeat it."""

import dataclasses
import os
import platform
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from transnet.data import DataSet
from transnet.runs import recipes
from transnet.runs.config import TrainConfig, data_name
from transnet.runs.records import DataDescription, RunSettings, SplitSizes


def run_settings(config: TrainConfig, data: DataSet) -> RunSettings:
    """Return the content of ``config.json``."""
    # A run does not depend on the folder in which it is on this machine.
    out = Path(config.out).name if Path(config.out).is_absolute() else config.out
    return RunSettings(
        train=dataclasses.replace(config, out=out, resume=False),
        data=DataDescription(
            name=data.name,
            classes=tuple(data.classes),
            channels=data.channels,
            image_size=data.image_size,
            stored_size=data.geometry.stored[0],
            mean=tuple(data.mean),
            std=tuple(data.std),
            flip=data.flip if config.flip is None else config.flip,
            pad=data.geometry.pad if config.pad is None else config.pad,
            sizes=SplitSizes(len(data.train), len(data.val) if data.val else 0, len(data.test)),
            skipped=tuple(data.skipped),
            fingerprint=data.fingerprint,
        ),
    )


def command(config: TrainConfig, defaults: Mapping[str, object]) -> str:
    """Return the command that repeats this run: only the options that differ from the recipe's ``defaults``."""
    words = ["transnet", "train", shlex.quote(config.data)]
    for field in dataclasses.fields(config):
        value, default = getattr(config, field.name), defaults.get(field.name, field.default)
        always = field.name in ("transforms", "recipe", "seed")
        if field.name in ("data", "resume") or (value == default and not always):
            continue
        option = field.name.replace("_", "-")
        if isinstance(value, bool) and isinstance(field.default, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words += [f"--{option}", shlex.quote(str(value))]
    return " ".join(words)


def command_elsewhere(config: TrainConfig, name: str) -> str:
    """Return the command that repeats a run on another machine, in the folder ``runs/NAME``.

    It names neither the folder of the data nor the device, and has the defaults of checkpoints and TensorBoard.
    """
    neutral = dataclasses.replace(
        config, data=data_name(config.data), out=f"runs/{name}", checkpoint_every=TrainConfig.checkpoint_every,
        tensorboard=True, device="auto",
    )  # fmt: skip
    return command(neutral, recipes.settings(config.recipe, config.data))


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a run's numbers depend on."""
    import timm
    import torch
    import torchvision

    import transnet

    packages = {"torch": torch, "torchvision": torchvision, "timm": timm}
    found = {name: str(package.__version__) for name, package in packages.items()}  # torch's is a subclass of str
    return {"transnet": transnet.__version__, "python": platform.python_version(), **found}


def commit() -> str | None:
    """Return the commit of the source code: TRANSNET_COMMIT if it is set (for a copy of a checkout), or git's."""
    if given := os.environ.get("TRANSNET_COMMIT"):
        return given
    source = Path(__file__).parent
    if not (source.parents[2] / ".git").exists():
        return None
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(words, cwd=source, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
