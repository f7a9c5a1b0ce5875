"""The benchmarks: shares with intervals, timing, and the studies that tune settings."""

import ast
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from small_runs import environment
from transnet import TransNet, backbones, heads_loss
from transnet.runs.config import TrainConfig
from transnet.study.file import read_study
from transnet.train.inductor import GRAPH, SETTINGS
from transnet.train.optim import learning_rates

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import architectures  # type: ignore[import-not-found]
import gpu_plain_loop  # type: ignore[import-not-found]
from anytime_speed import interval, share_kept  # type: ignore[import-not-found]
from measuring import medians  # type: ignore[import-not-found]

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
STUDIES = sorted(BENCHMARKS.glob("tune_*.toml"))


def right(n: int, first: float, some: float, full: float) -> torch.Tensor:
    """Of n images, which ones each way of predicting has right."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    return torch.stack([order < share * n for share in (first, some, full)], 1)


def test_the_share_is_of_what_all_heads_gain_over_the_first() -> None:
    assert share_kept(0.75, 0.78, 0.80) == pytest.approx(0.6)
    assert share_kept(0.75, 0.81, 0.80) == pytest.approx(1.2)
    assert share_kept(0.75, 0.75, 0.75) is None


def test_the_interval_holds_the_share_and_narrows_with_more_images() -> None:
    few, many = (interval([right(n, 0.70, 0.78, 0.80)], draws=200) for n in (1_000, 20_000))
    for low, high in (few, many):
        assert low < 0.8 < high
    assert many[1] - many[0] < 0.5 * (few[1] - few[0])


def test_several_runs_count_as_one_on_the_same_images() -> None:
    runs = [right(2_000, 0.70, 0.80, 0.80), right(2_000, 0.70, 0.75, 0.80)]
    low, high = interval(runs, draws=200)
    assert low < 0.75 < high


def test_without_a_gain_there_is_no_interval() -> None:
    assert interval([right(500, 0.8, 0.8, 0.8)], draws=20) is None


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_candidates_are_studies(path: Path) -> None:
    study = read_study(path).changed(data="digits")
    for variant in study.variants.values():
        assert study.config(variant, 0, "out").evaluate_every == 0


def test_every_way_is_timed_in_every_round() -> None:
    calls: list[str] = []
    found = medians({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3, "cpu", warm_up=1)
    assert (calls.count("a"), calls.count("b")) == (4, 4)
    assert set(found) == {"wall", "processor"}
    assert all(seconds >= 0 for times in found.values() for seconds in times.values())


def test_architectures_are_rows_with_errors_or_a_reason() -> None:
    names = ("timm:test_resnet", "timm:deepseek_vit_412m_enc", "timm:resnet_of_nobody")
    rows = {name: architectures.in_a_process(name) for name in names}
    fine, encoder, unknown = rows.values()
    assert max(fine[key] for key in ("plain", "each_head", "pruned")) < architectures.TOLERANCE
    assert "classifier" in encoder["reason"]
    assert not unknown["created"]
    found = architectures.summary(rows)
    counts = [found[key] for key in ("tried", "created", "with_classifier", "wrapped", "with_numbers")]
    assert counts == [3, 2, 1, 1, 1]
    assert set(found["rest"]) == set(names[1:])


def test_an_architecture_whose_process_ends_is_a_row_with_its_reason() -> None:
    class Fatal(str):
        def split(self, *_: Any) -> Any:
            os._exit(3)

    assert architectures.in_a_process(Fatal())["reason"] == "its process ended with status 3"


# --------------------------------------------------------------------------------------------------------- beside peers


def few_images(n: int = 40) -> dict[str, object]:
    random = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (n, 8, 8, 3), dtype=torch.uint8, generator=random)
    y = torch.arange(n) % 5
    return {"x_train": x, "y_train": y, "x_test": x, "y_test": y, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}


def test_the_plain_loop_is_short_and_needs_torch_and_torchvision_alone() -> None:
    source = (BENCHMARKS / "gpu_plain_loop.py").read_text()
    assert len(source.splitlines()) <= 200
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        assert not isinstance(node, ast.ImportFrom) or node.module == "torch"
    assert names - set(sys.stdlib_module_names) == {"torch", "torchvision"}


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_the_plain_loop_has_the_recipes_settings_and_schedule() -> None:
    config = TrainConfig.for_data("cifar100", "x", recipe="fast")
    names = ("batch_size", "epochs", "lr", "warmup", "momentum", "weight_decay", "label_smoothing")
    of_loop = ("BATCH", "EPOCHS", "LR", "WARMUP", "MOMENTUM", "WEIGHT_DECAY", "SMOOTHING")
    assert [getattr(config, name) for name in names] == [getattr(gpu_plain_loop, name) for name in of_loop]
    assert (config.nesterov, config.mixup, config.cutmix) == (True, 0, 0)
    made = gpu_plain_loop.Loop(few_images(), heads=1, batch=16, epochs=60, mode="off")
    steps, found = math.ceil(40 / 16), []
    for _ in range(60 * steps):
        found.append(made.optimizer.param_groups[0]["lr"])
        made.schedule.step()
    torch.testing.assert_close(torch.tensor(found), learning_rates(config, steps))


def test_the_plain_loops_network_is_a_transnet() -> None:
    loop = gpu_plain_loop.Loop(few_images(), heads=2, mode="off")
    net = TransNet(backbones.create("resnet18-cifar", num_classes=5), "r0,r1")
    net.load_state_dict(loop.net.state_dict())
    x = loop.normalise(loop.data["x_train"][:8]).permute(0, 3, 1, 2)
    torch.testing.assert_close(loop.net.train()(x), net.train()(x))


def test_the_plain_loops_loss_is_that_of_crops_and_flips() -> None:
    loop = gpu_plain_loop.Loop(few_images(), heads=2, mode="off")
    seen, index = [], torch.tensor([3, 0, 7, 9])
    loop.net.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    loss = loop.loss_of(index)
    y = loop.data["y_train"][index]
    torch.testing.assert_close(loss, heads_loss(loop.net(seen[0]), y, label_smoothing=gpu_plain_loop.SMOOTHING))
    padded = torch.nn.functional.pad(loop.normalise(loop.data["x_train"][index]).permute(0, 3, 1, 2), (4, 4, 4, 4))
    for image, whole in zip(seen[0], padded, strict=True):
        crops = whole.unfold(1, 8, 1).unfold(2, 8, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)  # all 9 × 9 of them
        assert (torch.cat([crops, crops.flip(-1)]) == image).flatten(1).all(1).any()


@pytest.mark.slow
def test_speeds_on_a_gpu_are_written_row_by_row_and_added_to(tmp_path: Path) -> None:
    words = [sys.executable, str(BENCHMARKS / "gpu_speed.py"), "digits", "--device", "cpu", "--quick", "--repeats", "1"]
    words += ["--out", str(tmp_path / "speed.json")]

    def measured(parts: str) -> dict[str, Any]:
        variables = {**environment(), "TRANSNET_REWRITES": "all"}
        subprocess.run([*words, "--parts", parts, "--groups", "2x512"], check=True, env=variables, capture_output=True)
        found: dict[str, Any] = json.loads((tmp_path / "speed.json").read_text())
        return found

    rows = measured("speed")["rows"]
    rewrites = {f"without {name}" for name in ("rewrites", *GRAPH, *SETTINGS)}
    assert {"ours", "plain", "lightning"} | rewrites == {row["what"] for row in rows}
    assert all(row["m"] == 2 and row["batch"] == 512 and len(row["passes_per_second"]) == 1 for row in rows)
    both = measured("speed,sharing")
    assert both["rows"] == rows
    assert set(both["sharing"]) == {"1", "2", "3"}
    assert {"command", "commit", "versions", "device"} < set(both)
