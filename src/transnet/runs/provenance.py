"""Where a run comes from: its settings, command, versions and commit, so that anyone can repeat it."""

import dataclasses
import os
import platform
import shlex
import subprocess
from pathlib import Path

import transnet
from transnet.data import DataSet
from transnet.runs import recipes
from transnet.runs.config import TrainConfig, data_name
from transnet.runs.records import DataDescription, RunSettings, SplitSizes


def run_settings(config: TrainConfig, data: DataSet) -> RunSettings:
    """Return the content of ``config.json``, which does not depend on the folder that holds the run."""
    out = Path(config.out).name if Path(config.out).is_absolute() else config.out
    return RunSettings(
        train=dataclasses.replace(config, out=out, resume=False),
        data=DataDescription(
            name=data.name, classes=data.classes, channels=data.channels, image_size=data.image_size,
            stored_size=data.geometry.stored[0], mean=data.mean, std=data.std,
            flip=data.flip if config.flip is None else config.flip,
            pad=data.geometry.pad if config.pad is None else config.pad,
            sizes=SplitSizes(len(data.train), len(data.val) if data.val else 0, len(data.test)),
            skipped=data.skipped, fingerprint=data.fingerprint,
            subset_seed=config.seed if config.train_fraction < 1 else None,
        ),
    )  # fmt: skip


def command(config: TrainConfig) -> str:
    """Return the command that repeats a run: only the options that differ from the recipe's."""
    words = ["transnet", "train", shlex.quote(config.data)]
    defaults = recipes.settings(config.recipe, config.data)
    for field in dataclasses.fields(config):
        value, default = getattr(config, field.name), defaults.get(field.name, field.default)
        always = field.name in ("transforms", "recipe", "seed")
        if field.name in ("data", "resume") or (value == default and not always):
            continue
        option = field.name.replace("_", "-")
        if isinstance(value, bool) and isinstance(field.default, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif isinstance(value, tuple):
            words += [word for item in value for word in (f"--{option}", shlex.quote(item))]
        else:
            words += [f"--{option}", shlex.quote(str(value))]
    return " ".join(words)


def command_elsewhere(config: TrainConfig, name: str) -> str:
    """Return the command that repeats a run on another machine, in the folder ``runs/NAME``."""
    neutral = dataclasses.replace(
        config, data=data_name(config.data), out=f"runs/{name}", checkpoint_every=TrainConfig.checkpoint_every,
        tensorboard=True, device="auto", channels_last="auto",
    )  # fmt: skip
    return command(neutral)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a run's numbers depend on."""
    import timm
    import torch
    import torchvision

    found = {package.__name__: str(package.__version__) for package in (torch, torchvision, timm)}
    return {"transnet": transnet.__version__, "python": platform.python_version(), **found}


def commit() -> str | None:
    """Return the commit of the source code: TRANSNET_COMMIT if it is set (for a copy of a checkout), or git's."""
    given, source = os.environ.get("TRANSNET_COMMIT"), Path(__file__).parents[3]
    if given or not (source / ".git").exists():
        return given or None
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(words, cwd=source, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
