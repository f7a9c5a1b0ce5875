"""Where a result comes from: every results file has it."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import torch

from transnet.train.device import device_name


def environment(device: str) -> dict[str, object]:
    """Command, commit, versions and device, to be kept beside the figures."""
    import timm
    import torchvision

    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parent,
    ).stdout.strip()  # fmt: skip
    return {
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *map(_portable, sys.argv[1:])]),
        "commit": os.environ.get("TRANSNET_COMMIT") or commit,
        "device": device_name(torch.device(device)),
        "versions": {"python": platform.python_version()}
        | {package.__name__: package.__version__ for package in (torch, torchvision, timm)},
    }


def _portable(word: str) -> str:
    """The last part of an absolute path, which means nothing on another machine."""
    return Path(word).name if word.startswith("/") else word
