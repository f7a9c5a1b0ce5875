"""Where a run comes from: what its folder says so that anyone can do it again."""

import dataclasses
import os
import platform
import shlex
import subprocess
from pathlib import Path
from typing import Any

from transnet.data import DataSet
from transnet.runs import recipes
from transnet.runs.config import TrainConfig, data_name
from transnet.runs.records import DataDescription, RunSettings, SplitSizes


def describe(config: TrainConfig, data: DataSet) -> RunSettings:
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
            stored_size=data.stored_size,
            mean=tuple(data.mean),
            std=tuple(data.std),
            flip=data.flip if config.flip is None else config.flip,
            pad=data.geometry.pad if config.pad is None else config.pad,
            sizes=SplitSizes(len(data.train), len(data.val) if data.val else 0, len(data.test)),
            skipped=tuple(data.skipped),
            fingerprint=data.fingerprint,
        ),
    )


def command(config: TrainConfig, defaults: dict[str, Any]) -> str:
    """The command that does this run again: only what differs from the recipe's defaults."""
    words = ["transnet", "train", shlex.quote(config.data)]
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        standard = defaults.get(field.name, field.default)
        if field.name in ("data", "resume") or (
            value == standard and field.name not in ("transforms", "recipe", "seed")
        ):
            continue
        flag = "--" + field.name.replace("_", "-")
        if isinstance(value, bool) and isinstance(field.default, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            words += [flag, shlex.quote(str(value))]
    return " ".join(words)


def command_elsewhere(config: TrainConfig, name: str) -> str:
    """The command that does a run again on another machine.

    Where its data and its folder lay, and how it was watched and saved, is no part of it.

    Args:
        config: the run's settings.
        name: of the folder to suggest.
    """
    neutral = dataclasses.replace(
        config, data=data_name(config.data), out=f"runs/{name}", checkpoint_every=TrainConfig.checkpoint_every,
        tensorboard=True, device="auto",
    )  # fmt: skip
    return command(neutral, recipes.settings(config.recipe, config.data))


def versions() -> dict[str, str]:
    """What the run ran on."""
    import timm
    import torch
    import torchvision

    import transnet

    return {
        "transnet": transnet.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # a subclass of str
        "torchvision": str(torchvision.__version__),
        "timm": str(timm.__version__),
    }


def commit() -> str | None:
    """The commit of the source: what TRANSNET_COMMIT says, for a copy of a checkout, or else the checkout's own."""
    if given := os.environ.get("TRANSNET_COMMIT"):
        return given
    source = Path(__file__).parent
    if not (source.parents[2] / ".git").exists():
        return None
    asked = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        answer = subprocess.run(asked, cwd=source, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
