"""What the benchmarks make of their figures: shares with intervals, and tables of tuning."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import tuning_tables  # type: ignore[import-not-found]
from anytime_speed import WAYS, interval, share_kept  # type: ignore[import-not-found]
from anytime_tables import FILES, anytime, anytime_in_brief  # type: ignore[import-not-found]
from pretrained_tables import pretrained  # type: ignore[import-not-found]
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


def anytime_files(folder: Path) -> None:
    """Two runs in each. All were trained from nothing but the last ones, which keep more of less."""

    def run(share: float, gain: float, **settings: Any) -> dict[str, Any]:
        speeds = dict(zip(WAYS, (3000.0, 2100.0, 1000.0), strict=True))
        rows = {way: {"accuracy": 0.7, "passes": 1.3, "images_per_second": speed} for way, speed in speeds.items()}
        rows["full"]["accuracy"] += gain
        return {
            "model": "m", "epochs": 60, "cutmix": 0.0, "label_smoothing": 0.1, "distillation": 1.0, "rows": rows,
            "share_of_gain_kept": share, "n_val": 50, "n_test": 100, **settings,
        }  # fmt: skip

    for i, name in enumerate(FILES):
        last = name == FILES[-1]
        settings = {"pretrained": True, "image_size": 96, "val": {"accuracy": [0.7, 0.78, 0.8]}} if last else {}
        content = {
            "share_of_gain_kept": 1.02 if last else 0.9 + 0.01 * i, "interval": [0.85, 0.951],
            "runs": [run(share, 0.01 if last else 0.02 + 0.01 * i, **settings) for share in (0.88, 0.92)],
            "device": "GPU", "versions": {"torch": "2"}, "commit": "abc", "passes_on_val": 1.3,
        }  # fmt: skip
        (folder / f"{name}_h200.json").write_text(json.dumps(content))


def test_the_table_of_anytime_has_means_and_every_run_s_share(tmp_path: Path) -> None:
    anytime_files(tmp_path)
    text = anytime(tmp_path)
    assert "| m, 60 epochs, taught, n = 2 | 70.00 | 70.00 | 72.00 | 1.300 | 90.0 [85.0, 95.1] |" in text
    assert "| m, pretrained, 96×96 pixels, 60 epochs, taught, n = 2 | 70.00 | 70.00 | 71.00 | 1.300 | 102.0 [" in text
    assert "its runs keep 88.0, 92.0 %; on the 50 images that set the threshold 80.0 %. GPU" in text


def test_anytime_in_brief_sets_pretrained_networks_beside_all_others(tmp_path: Path) -> None:
    anytime_files(tmp_path)
    text = anytime_in_brief(tmp_path)
    assert "1.30 passes per image. All heads together gain 2.0 to 5.0 points" in text
    assert "trained from nothing, of which 90 to 93 % were kept, and 1.0 in those fine-tuned" in text
    assert "of which 102.0 [85.0, 95.1] % were kept (n = 2; in brackets" in text
    assert "at 2.10 times the images a second of all heads" in text


def test_pretrained_runs_have_a_column_for_each_setting(tmp_path: Path) -> None:
    def write(folder: str, epochs: int, full: float) -> None:
        heads = [{"name": name, "accuracy": value} for name, value in (("r0", 0.8), ("r1", 0.7))]
        result = {
            "config": {
                "train": {"epochs": epochs, "lr": 0.2, "weight_decay": 0.001, "model": "m"},
                "data": {"name": "d", "image_size": 96, "sizes": {"train": 1000, "test": 100}},
            },
            "test": {"heads": heads, "pruned": heads[0], "full": {"accuracy": full}},
            "device": "GPU", "versions": {"torch": "2"}, "commit": f"c{epochs}",
        }  # fmt: skip
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "result.json").write_text(json.dumps(result))

    row = {"candidate": "lr 0.2 bn-separate", "alone": {"pruned": 0.5, "full": 0.6}, "judged_by": 10, "epochs": 8}
    (tmp_path / "tune_finetuning.json").write_text(json.dumps({"rows": [row], "remark": "One failed."}))
    write("pretrained_run", 6, 0.81)
    for seed, full in enumerate((0.82, 0.84)):
        write(f"anytime_runs/t3-pretrained-s{seed}", 12, full)
    text = pretrained(tmp_path)
    settings = "learning rate 0.2, decay 0.001"
    assert f"| % after 6 epochs, {settings} (one seed) | % after 12 epochs, {settings} (n = 2) | passes" in text
    assert "| head r1 | 70.00 | 70.00 ± 0.00 | 1 |" in text
    assert "| all heads | 81.00 | 83.00 ± 1.00 | 2 |" in text
    assert "gain over the identity's +1.00 (6 epochs), +3.00 (12 epochs)" in text
    assert "commit c6, c12" in text
    assert "learning rate 0.2 and batch norm per transform: 50.00 % with one head, 60.00 % with all" in text
    assert "One failed." in text
    (tmp_path / "tune_finetuning.json").write_text(json.dumps({"rows": [row]}))
    assert "remark" not in pretrained(tmp_path)
    (tmp_path / "tune_finetuning.json").unlink()
    assert "were tried" not in pretrained(tmp_path)


def test_candidates_are_trained_seed_by_seed_and_some_for_longer(tmp_path: Path) -> None:
    args = options(None, epochs=5).parse_args(["digits", "--device", "cpu", "--out", str(tmp_path)])
    runs = planned(args, {"lr 0.2": (2, {"lr": 0.2}), "base": (1, {"longer": 2, "transforms": "r0"})}, lr=0.1)
    assert [(run.name, run.config.epochs, run.config.lr) for run in runs] == [
        ("lr_0.2_seed0", 5, 0.2), ("base_seed0", 10, 0.1), ("lr_0.2_seed1", 5, 0.2),
    ]  # fmt: skip


def test_tuning_is_the_mean_over_seeds_and_says_what_weight_1_changed(tmp_path: Path) -> None:
    def run(candidate: str, seed: int, pruned: float) -> dict[str, Any]:
        view = {"pruned": pruned, "full": 0.8}
        return {"candidate": candidate, "seed": seed, "epochs": 30, "judged_by": 100, "alone": view, "mirrored": view}

    rows = [run("base-long", 0, 0.7), run("r0,r1", 0, 0.70), run("r0,r1", 1, 0.72), run("r0,r1 taught 1", 0, 0.74)]
    (tmp_path / "tune_teaching.json").write_text(json.dumps({"rows": rows, "device": "GPU"}))
    text = tuning_tables.teaching(tmp_path)
    assert "| `r0,r1` | 2 | 71.00 | 80.00 | 71.00 | 80.00 |" in text
    assert "changed the head that is kept by +3.00 points on the image alone" in text
    assert "remark" not in text


def test_a_candidate_is_named_as_one_would_ask_for_it() -> None:
    assert tuning_tables.name_of("r0,m3 taught 1 bn-separate") == "`r0,m3 --distillation 1 --bn separate`"
    assert tuning_tables.name_of("base-long") == "base"
