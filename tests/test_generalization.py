"""Fig. 4: learning curves over training passes."""

import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from transnet.report.generalization import draw_generalization
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


def test_the_axis_names_what_an_epoch_costs(small_study: Path) -> None:
    svg = ElementTree.parse(small_study / "figures" / "digits-fast-generalization.svg").getroot()
    words = {"".join(item.itertext()).strip() for item in svg.iter() if "text" in item.tag}
    assert "training passes per image: one per epoch for the baseline, two for PT2" in words
    for title in ("baseline", "PT2", "baseline, 2× epochs"):
        assert {f"{title}, test", f"{title}, training"} <= words


def test_curves_are_drawn_over_passes(small_study: Path, lines: Any) -> None:
    last = {name: line.get_xdata()[-1] for name, line in lines(small_study).items()}
    assert [last[f"{title}, test"] for title in ("baseline", "PT2", "baseline, 2× epochs")] == [1, 2, 2]


def test_runs_that_were_tested_less_often_do_not_bend_the_curve(small_study: Path, tmp_path: Path, lines: Any) -> None:
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
