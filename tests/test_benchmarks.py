"""The benchmarks: shares with intervals, timing, and the studies that tune settings."""

import sys
from pathlib import Path

import pytest
import torch

from transnet.study.file import read_study

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from anytime_speed import interval, share_kept  # type: ignore[import-not-found]
from measuring import medians  # type: ignore[import-not-found]

STUDIES = sorted((Path(__file__).parents[1] / "benchmarks").glob("tune_*.toml"))


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
