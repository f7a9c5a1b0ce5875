"""The benchmarks: shares with intervals, and the runs of tuning."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from anytime_speed import interval, share_kept  # type: ignore[import-not-found]
from tuning import options, planned  # type: ignore[import-not-found]


def right(n: int, first: float, some: float, full: float) -> torch.Tensor:
    """Of n images the first ones, as many as each way has right."""
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


def test_candidates_are_trained_seed_by_seed_and_some_for_longer(tmp_path: Path) -> None:
    args = options(None, epochs=5).parse_args(["digits", "--device", "cpu", "--out", str(tmp_path)])
    runs = planned(args, {"lr 0.2": (2, {"lr": 0.2}), "base": (1, {"longer": 2, "transforms": "r0"})}, lr=0.1)
    assert [(run.name, run.config.epochs, run.config.lr) for run in runs] == [
        ("lr_0.2_seed0", 5, 0.2), ("base_seed0", 10, 0.1), ("lr_0.2_seed1", 5, 0.2),
    ]  # fmt: skip
