"""Fig. 4, small charts of a run, and early exit."""

import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from trained import digits_run
from transnet.cli import main
from transnet.early_exit import curve
from transnet.report.curves import charts_of, draw_early_exit, draw_generalization
from transnet.ship.predict import choose_threshold
from transnet.study.results import read_runs


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Draw a study's learning curves and return the lines by their labels."""
    figures: list[Any] = []
    monkeypatch.setattr("transnet.report.plot_style.save_figure", lambda figure, path: figures.append(figure) or path)

    def drawn(study: Path) -> dict[str, Any]:
        draw_generalization(read_runs(study)[0], tmp_path)
        return {line.get_label(): line for line in figures[-1].axes[0].get_lines()}

    return drawn


def test_the_axis_label_explains_training_passes(small_study: Path) -> None:
    svg = ElementTree.parse(small_study / "figures" / "digits-fast-generalization.svg").getroot()
    words = {"".join(item.itertext()).strip() for item in svg.iter() if "text" in item.tag}
    assert "training passes per image: one per epoch for the baseline, two for PT2" in words
    for title in ("baseline", "PT2", "baseline, 2× epochs"):
        assert {f"{title}, test", f"{title}, training"} <= words


@pytest.mark.parametrize("factor", [1.0, 0.01])
def test_the_losses_have_at_least_three_ticks(small_study: Path, tmp_path: Path, lines: Any, factor: float) -> None:
    study = shutil.copytree(small_study, tmp_path / "study")
    for path in study.glob("runs/digits-fast-base-s*/metrics.jsonl"):
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        for entry in entries:
            entry["loss"] = [factor * loss for loss in entry["loss"]]
        path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    axes = lines(study)["PT2, test"].axes
    low, high = axes.get_ylim()
    assert (high > 10 * low) == (factor < 1)
    assert sum(low <= tick <= high for tick in axes.get_yticks()) > 2


def test_curves_are_drawn_over_passes(small_study: Path, lines: Any) -> None:
    last = {name: line.get_xdata()[-1] for name, line in lines(small_study).items()}
    assert [last[f"{title}, test"] for title in ("baseline", "PT2", "baseline, 2× epochs")] == [1, 2, 2]


def test_runs_that_were_tested_less_often_are_left_out(small_study: Path, tmp_path: Path, lines: Any) -> None:
    study = shutil.copytree(small_study, tmp_path / "study")
    first, second = (study / "runs" / f"digits-fast-base-x2-s{seed}" / "metrics.jsonl" for seed in (0, 1))
    entries = [json.loads(line) for line in first.read_text().splitlines()]
    assert len(entries) == 2
    del entries[0]["test"]
    first.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    line = lines(study)["baseline, 2× epochs, test"]
    left = [json.loads(entry)["test"]["pruned"]["loss"] for entry in second.read_text().splitlines()]
    assert list(line.get_xdata()) == [1, 2]
    assert list(line.get_ydata()) == pytest.approx(left)


def test_a_run_has_small_charts_of_loss_and_accuracy(small_study: Path) -> None:
    run = next(run for run in read_runs(small_study)[0].of("base-x2"))
    charts = charts_of(run.metrics)
    assert list(charts) == ["cross-entropy", "accuracy %"]
    assert [list(line) for lines in charts.values() for line in lines.values()] == [[1, 2]] * 4


def test_early_exit_is_drawn(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, y = torch.randn(50, 3, 4, generator=generator), torch.arange(50) % 4
    svg = draw_early_exit(curve(logits, y), tmp_path / "figures" / "anytime", title="digits")
    assert svg == tmp_path / "figures" / "anytime.svg"
    assert "digits" in svg.read_text()
    assert "all 3 heads" in svg.read_text()


def test_evaluate_prints_and_draws_early_exit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = str(digits_run()), tmp_path / "figures"
    assert main(["evaluate", path, "--anytime", "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert "passes" in shown.out
    assert "chosen on the validation split" in " ".join(shown.out.split())
    assert "anytime-run." in shown.err
    assert {"anytime-run.png", "anytime-run.svg"} <= {file.name for file in out.iterdir()}
    assert main(["evaluate", path, "--anytime", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)[path]
    points = found["anytime"]["points"]
    assert points["accuracy"][0] == found["plain"]["pruned"]["accuracy"]
    assert points["accuracy"][-1] == found["plain"]["full"]["accuracy"]
    assert (points["passes"][0], points["passes"][-1]) == (1, 3)
    chosen = choose_threshold(path, passes=1.4)  # on the validation split
    assert chosen in points["confidence"]
    assert main(["evaluate", path, "--anytime", "--split", "val"]) == 0
    assert "on the same images" in " ".join(capsys.readouterr().out.split())


def test_runs_with_the_same_name_get_their_own_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(digits_run()), str(digits_run(transforms="r0,r1", val_fraction=0.0))]  # both folders are named run
    assert main(["evaluate", *paths, "--anytime", "--json", "--out", str(tmp_path)]) == 0
    assert sorted(file.name for file in tmp_path.glob("*.svg")) == ["anytime-1-run.svg", "anytime-2-run.svg"]


def test_evaluate_refuses_to_draw_without_early_exit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    one = str(digits_run(transforms="r0"))
    for words, message in (
        ([one, "--anytime"], "has one head"),
        ([str(digits_run()), "--out", str(tmp_path / "figures")], "only --anytime draws"),
        ([str(digits_run()), "--anytime", "--out", str(tmp_path / "file")], "cannot be created"),
    ):
        assert main(["evaluate", *words]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "figures").exists()
