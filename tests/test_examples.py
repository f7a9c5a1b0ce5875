"""Every example runs as in its docstring, on small data, and each framework measures the same as a plain loop."""

import ast
import difflib
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import lightning
import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset
from transformers import Trainer, TrainingArguments

from trained import digit_files
from transnet import TransNet
from transnet.backbones import create

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(path for path in EXAMPLES.glob("*.py") if path.name != "digits.py")
PLAIN, OURS = EXAMPLES / "finetune_timm_plain.py", EXAMPLES / "finetune_timm.py"


def script(name: str, *words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), *words]
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", ["plain_pytorch", "with_accelerate", "with_transformers", "with_lightning"])
def test_an_example_learns_digits(name: str, tmp_path: Path) -> None:
    result = script(f"{name}.py", "--epochs", "6", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    shown = {which: float(value) for which, value in re.findall(r"^(both|pruned).*?([\d.]+)%$", result.stdout, re.M)}
    assert set(shown) == {"both", "pruned"}, result.stdout
    assert min(shown.values()) > 80


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_begins_with_its_command_and_is_short(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert f"examples/{path.name}" in lines[0]
    assert len(lines) < 90


# ----------------------------------------------------------------------------------------- frameworks' own validation


@pytest.fixture
def part(monkeypatch):
    """Get a class or function out of an example."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return lambda name, of: runpy.run_path(str(EXAMPLES / f"{of}.py"), run_name="example")[name]


@pytest.fixture
def data(part) -> tuple[Subset[TensorDataset], Subset[TensorDataset]]:
    train, test = part("digits", "digits")()
    return Subset(train, range(320)), Subset(test, range(100))  # 100: the last batch is smaller than the others


def digits_net() -> TransNet:
    torch.manual_seed(0)
    return TransNet(create("resnet8-small", num_classes=10, in_channels=1), ("r0", "r1"))


def plain_loop(model: nn.Module, rows: Subset[TensorDataset]) -> tuple[float, float]:
    """Accuracy and cross-entropy."""
    model.cpu().eval()
    right, loss = 0, 0.0
    with torch.no_grad():
        for x, y in DataLoader(rows, batch_size=16):
            logits = model(x)
            right += int((logits.argmax(1) == y).sum())
            loss += float(F.cross_entropy(logits, y, reduction="sum"))
    return right / len(rows), loss / len(rows)


def test_a_lightning_module_trains_validates_and_tests_without_code_for_heads(part, data) -> None:
    train, test = (DataLoader(rows, batch_size=32) for rows in data)
    net = digits_net()
    module = part("Classifier", "with_lightning")(net)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    before = [head.weight.clone() for head in net.heads]
    trainer.fit(module, train, test)
    assert not any(torch.equal(a, b.weight) for a, b in zip(before, net.heads, strict=True))
    wanted = pytest.approx(plain_loop(net, data[1])[0])
    assert float(trainer.callback_metrics["val_accuracy"]) == wanted
    assert trainer.validate(module, test, verbose=False)[0]["val_accuracy"] == wanted
    assert trainer.test(module, test, verbose=False)[0]["test_accuracy"] == wanted

    pruned = net.prune()
    measured = trainer.test(type(module)(pruned), test, verbose=False)[0]["test_accuracy"]
    assert measured == pytest.approx(plain_loop(pruned, data[1])[0])


def test_the_trainers_metrics_equal_those_of_a_plain_loop(part, data, tmp_path: Path) -> None:
    net = digits_net()
    arguments = TrainingArguments(
        str(tmp_path), num_train_epochs=2, per_device_train_batch_size=32, per_device_eval_batch_size=16,
        learning_rate=5e-3, report_to="none", save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(
        part("ForTrainer", "with_transformers")(net),
        arguments,
        data_collator=part("collate", "with_transformers"),
        train_dataset=data[0],
        eval_dataset=data[1],
        compute_metrics=part("accuracy", "with_transformers"),
    )
    trainer.train()
    metrics, predictions = trainer.evaluate(), trainer.predict(data[1]).predictions
    assert predictions.shape == (100, 10)
    accuracy, loss = plain_loop(net, data[1])
    assert metrics["eval_accuracy"] == pytest.approx(accuracy)
    assert metrics["eval_loss"] == pytest.approx(loss, rel=1e-4)


# --------------------------------------------------------------------------------------------- a training script


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for path in digit_files(tmp_path / "all", 60):
        number = int(path.stem.split("-")[1])
        folder = tmp_path / "photos" / ("train" if number < 40 else "val") / path.name[0]
        folder.mkdir(parents=True, exist_ok=True)
        path.rename(folder / path.name)
    return tmp_path / "photos"


@pytest.mark.parametrize("path", [PLAIN, OURS], ids=lambda path: path.stem)
def test_a_script_fine_tunes_a_vit_and_ends_with_a_plain_timm_model(path: Path, photos: Path, tmp_path: Path) -> None:
    words = (str(photos), "--model", "test_vit", "--no-pretrained", "--epochs", "2", "--batch-size", "8")
    result = script(path.name, *words, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert len(re.findall(r"^(?:epoch \d|final model): accuracy [\d.]+%$", result.stdout, re.M)) == 3
    model = timm.create_model("test_vit", num_classes=10)
    model.load_state_dict(load_file(tmp_path / "finetuned.safetensors"))
    assert model(torch.randn(2, 3, 160, 160)).shape == (2, 10)


def test_fine_tuning_offline_ends_with_a_message(photos: Path, tmp_path: Path) -> None:
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    result = script(OURS.name, str(photos), "--model", "test_vit", cwd=tmp_path, **offline)
    assert result.returncode == 2
    assert "--no-pretrained" in result.stderr
    assert "Traceback" not in result.stderr


def test_transnet_changes_at_most_five_lines_of_a_script_and_not_its_validation() -> None:
    plain, ours = PLAIN.read_text(), OURS.read_text()
    matcher = difflib.SequenceMatcher(None, *(text.splitlines() for text in (plain, ours)), autojunk=False)
    changed = 0
    for kind, *lines in matcher.get_opcodes():
        if kind != "equal":
            old, new = plain.splitlines()[slice(*lines[:2])], ours.splitlines()[slice(*lines[2:])]
            changed += max(sum(line != "" for line in side) for side in (old, new))
    assert changed <= 5

    def validation(text: str) -> str | None:
        return next(
            ast.get_source_segment(text, node)
            for node in ast.parse(text).body
            if isinstance(node, ast.FunctionDef) and node.name == "validate"
        )

    assert validation(plain) == validation(ours)


def test_the_docs_show_the_difference_between_the_two_scripts() -> None:
    shown = re.search(r"```diff\n(.*?)```", (ROOT / "docs/howto/your-script.md").read_text(), re.DOTALL)
    assert shown
    texts = [path.read_text().splitlines() for path in (PLAIN, OURS)]
    names = [str(path.relative_to(ROOT)) for path in (PLAIN, OURS)]
    wanted = difflib.unified_diff(*texts, *names, n=1, lineterm="")
    assert shown[1].splitlines() == [line.rstrip() for line in wanted]  # editors strip spaces at the end of a line
