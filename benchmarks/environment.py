"""What every result file says of where it came from."""

import platform
import subprocess
import sys
from pathlib import Path

import torch


def environment(device: str) -> dict[str, object]:
    """Command, commit, versions and device, to be kept beside the figures measured."""
    import timm
    import torchvision

    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parent,
    ).stdout.strip()  # fmt: skip
    gpu = device.startswith("cuda")
    return {
        "command": "python " + " ".join([f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "commit": commit or None,
        "device": torch.cuda.get_device_name() if gpu else f"CPU, {torch.get_num_threads()} threads",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
            "timm": timm.__version__,
        },
    }
