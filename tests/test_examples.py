"""Every example runs as its docstring says, on small data, and learns."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file

from trained import digit_files

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def example(monkeypatch, tmp_path, capsys):
    """Run an example in this process, as a script: the libraries are imported once."""

    def run(name, *words):
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(EXAMPLES))
        monkeypatch.setattr(sys, "argv", [name, *words])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("name", ["plain_pytorch", "with_accelerate", "with_transformers", "with_lightning"])
def test_an_example_learns_digits(name, example):
    printed = example(f"{name}.py", "--epochs", "6")
    pruned = re.search(r"pruned.*?([\d.]+)%", printed)
    assert pruned, printed
    assert float(pruned[1]) > 80


def test_a_timm_model_is_fine_tuned_from_start_to_end(example, tmp_path):
    for path in digit_files(tmp_path / "all", 120):
        folder = tmp_path / "photos" / path.name[0]
        folder.mkdir(parents=True, exist_ok=True)
        path.rename(folder / path.name)
    words = ("photos", "--model", "test_resnet", "--image-size", "32", "--epochs", "2", "--random")
    printed = example("finetune_timm.py", *words)
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
