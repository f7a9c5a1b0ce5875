"""Every example runs as its docstring says, on small data, and learns."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file

from trained import digit_files

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name, *words, cwd):
    paths = [str(Path(__file__).parent.parent / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(EXAMPLES / name), *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("name", ["plain_pytorch", "with_accelerate", "with_transformers", "with_lightning"])
def test_an_example_learns_digits(name, tmp_path):
    printed = example(f"{name}.py", "--epochs", "6", cwd=tmp_path)
    pruned = re.search(r"pruned.*?([\d.]+)%", printed)
    assert pruned, printed
    assert float(pruned[1]) > 80


def test_a_timm_model_is_fine_tuned_from_start_to_end(tmp_path):
    for path in digit_files(tmp_path / "all", 120):
        folder = tmp_path / "photos" / path.name[0]
        folder.mkdir(parents=True, exist_ok=True)
        path.rename(folder / path.name)
    words = ("photos", "--model", "test_resnet", "--image-size", "32", "--epochs", "2", "--random")
    printed = example("finetune_timm.py", *words, cwd=tmp_path)
    assert "epoch 2: pruned" in printed
    model = timm.create_model("test_resnet", num_classes=10)
    model.load_state_dict(load_file(tmp_path / "better.safetensors"))
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_every_example_names_its_command_and_is_short():
    for path in EXAMPLES.glob("*.py"):
        text = path.read_text()
        assert len(text.splitlines()) < 90
        if path.name != "digits.py":
            assert f"examples/{path.name}" in text.split('"""')[1]
