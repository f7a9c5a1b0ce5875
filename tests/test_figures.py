"""The figures of a whole study: there in every format, and fit to stand in a page."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from transnet.study.drawing import inline
from transnet.study.figure_tables import invariance_sheet
from transnet.study.finished import read_folder
from transnet.study.measured import measure
from transnet.study.report import write_report

FIGURES = ("ensembles", "generalization", "invariance_layers", "invariance_last_layer")


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_in_every_format(small_study: Path, name: str) -> None:
    path = small_study / "figures" / f"digits-fast-{name}"
    assert path.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    svg = path.with_suffix(".svg").read_text()
    ElementTree.fromstring(svg)
    page = inline(svg)
    assert page.startswith("<svg")
    assert "#000000" not in page
    assert "viewBox" in page.split(">", 1)[0]


def test_ids_of_several_figures_do_not_meet(small_study: Path) -> None:
    seen: set[str] = set()
    for name in FIGURES:
        root = ElementTree.parse(small_study / "figures" / f"digits-fast-{name}.svg").getroot()
        used = {value for item in root.iter() for key, value in item.attrib.items() if "clip-path" in key}
        assert not used & seen
        seen |= used


def curves_of(study: Path) -> dict[str, Any]:
    (group,) = read_folder(study)
    found: dict[str, Any] = measure(group, study)["ensembles"]
    return found


def test_ensembles_of_one_size_share_no_network(small_study: Path) -> None:
    curves = curves_of(small_study)
    assert [len(point["ensembles"]) for point in curves["base"]] == [4, 2, 1, 1]
    assert [len(point["ensembles"]) for point in curves["PT2"]] == [4, 2, 1, 1]
    assert [len(point["ensembles"]) for point in curves["Tm"]] == [2, 2, 2, 2]
    for curve in curves.values():
        for m, point in enumerate(curve, 1):
            assert point["instances"] == point["passes"] == m
            used = [seed for seeds in point["seeds"] for seed in seeds]
            assert len(used) == len(set(used))


def test_a_single_network_scores_as_its_run_says(small_study: Path) -> None:
    curves = curves_of(small_study)
    for curve, kind, part, m in (("PT2", "t2", "pruned", 1), ("Tm", "t3", "full", 3)):
        result = json.loads((small_study / "runs" / f"digits-fast-{kind}-s0" / "result.json").read_text())
        entry = curves[curve][m - 1]["ensembles"][0]
        assert entry["accuracy"] == result["test"][part]["accuracy"]
        assert entry["loss"] == pytest.approx(result["test"][part]["loss"])


def test_a_report_without_weights_shows_what_was_measured(small_study: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(small_study, copy, ignore=shutil.ignore_patterns("*.safetensors", "*.lock"))
    (copy / "report.html").unlink()
    assert write_report(copy).read_text() == (small_study / "report.html").read_text()


def comparison(last: dict[str, float], layers: dict[str, tuple[float, float]]) -> dict[str, Any]:
    """Of one seed: every model's IS in the last layer, and base's and T2's in all layers."""
    runs = {
        model: {"layers": {name: {"mean": pair[i]} for name, pair in layers.items()}}
        for i, model in enumerate(("base", "T2"))
    }
    falling = {model: [value] for model, value in last.items()}
    rising = {model: [1 - value] for model, value in last.items()}
    measures = {"l2": falling, "relative": falling, "cosine": rising, "pearson": rising}
    return {"group": "r0,r1,r2,r3", "seed": 0, "runs": runs, "last_layer": measures}


def test_kernels_are_held_against_what_the_paper_claims() -> None:
    like = {"a": (0.5, 0.51), "b": (0.4, 0.4), "last": (0.2, 0.1)}
    *_, growing, alone = invariance_sheet(comparison({"base": 0.2, "T2": 0.1, "T3": 0.05}, like)).notes
    assert growing.endswith("So it is here, in one seed: base > T2 > T3.")
    assert "-50 % in the last; of the other 2 layers none differ by more, furthest a with +2 %" in alone

    spread = {"a": (0.5, 0.3), "b": (0.4, 0.4), "last": (0.2, 0.19)}
    *_, growing, alone = invariance_sheet(comparison({"base": 0.1, "T2": 0.2, "T3": 0.3}, spread)).notes
    assert growing.endswith("Not here, in one seed: T2 is not below base, T3 is not below T2.")
    assert "-5 % in the last; of the other 2 layers 1 differs by more, furthest a with -40 %" in alone


def test_a_network_of_one_convolution_has_no_other_layers() -> None:
    *_, growing = invariance_sheet(comparison({"base": 0.2, "T2": 0.1}, {"patches": (0.2, 0.1)})).notes
    assert growing.startswith("The paper: the last layer")


def test_kernels_of_base_alone_say_nothing_of_the_papers_claims() -> None:
    assert len(invariance_sheet(comparison({"base": 0.2}, {})).notes) == 2
