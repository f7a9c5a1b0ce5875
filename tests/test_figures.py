"""The figures of a whole study: there in every format, and fit to stand in a page."""

import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from transnet.errors import TransnetError
from transnet.report.figure_tables import invariance_sheet
from transnet.report.figures import draw_ensembles, draw_generalization
from transnet.report.kernels import draw, print_comparison
from transnet.report.measurements import measure
from transnet.report.page import facts, write_report
from transnet.report.plot_style import inline, label, make_logarithmic, new_figure
from transnet.study.old_results import read_folder

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


def written(svg: Path) -> list[str]:
    """The words and numbers of a drawing."""
    return ["".join(item.itertext()).strip() for item in ElementTree.parse(svg).getroot().iter() if "text" in item.tag]


def test_learning_curves_are_drawn_over_passes_and_say_what_an_epoch_costs(small_study: Path) -> None:
    words = written(small_study / "figures" / "digits-fast-generalization.svg")
    assert "training passes of each image: one an epoch of base, two of PT2" in words
    for title in ("base", "PT2", "base, 2× epochs"):
        assert {f"{title}, test", f"{title}, training"} <= set(words)


def test_a_head_more_moves_the_learning_curve_to_the_right(
    small_study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr("transnet.report.figures.save", lambda figure, path: drawn.append(figure) or [])
    draw_generalization(read_folder(small_study)[0], tmp_path)
    last = {line.get_label(): line.get_xdata()[-1] for line in drawn[0].axes[0].get_lines()}
    assert [last[f"{title}, test"] for title in ("base", "PT2", "base, 2× epochs")] == [1, 2, 2]


def test_runs_that_were_tested_less_often_do_not_bend_the_learning_curve(
    small_study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr("transnet.report.figures.save", lambda figure, path: drawn.append(figure) or [])
    study = shutil.copytree(small_study, tmp_path / "study")
    first, second = (study / "runs" / f"digits-fast-base-x2-s{seed}" / "metrics.jsonl" for seed in (0, 1))
    entries = [json.loads(line) for line in first.read_text().splitlines()]
    assert len(entries) == 2
    del entries[0]["test"]
    first.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    draw_generalization(read_folder(study)[0], tmp_path)
    lines = {line.get_label(): line for line in drawn[0].axes[0].get_lines()}
    line = lines["base, 2× epochs, test"]
    left = [json.loads(entry)["test"]["pruned"]["loss"] for entry in second.read_text().splitlines()]
    assert list(line.get_xdata()) == [1, 2]
    assert list(line.get_ydata()) == pytest.approx(left)


@pytest.mark.parametrize(("low", "high"), [(0.15, 4.2), (0.9, 1.3), (0.001, 4.0), (1.2, 2.4), (2.31, 2.34)])
def test_a_logarithmic_scale_can_be_read(low: float, high: float) -> None:
    figure, axes = new_figure()
    axes.plot([0, 1], [low, high])
    make_logarithmic(axes)
    figure.canvas.draw()
    bottom, top = axes.get_ylim()
    shown = [tick for tick in axes.yaxis.get_major_ticks() if bottom <= tick.get_loc() <= top]
    values = [float(tick.label1.get_text()) for tick in shown]
    assert len(set(values)) > 2
    assert values == pytest.approx([tick.get_loc() for tick in shown], rel=1e-3)


def test_the_last_layers_kernels_are_drawn_as_shares_that_reach_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr("transnet.report.kernels.save", lambda figure, path: drawn.append(figure) or [])
    layers = {"a": {"mean": 0.5, "std": 0.1, "n": 4, "random": 0.6}}
    runs = {
        "base": {"transforms": "r0", "layers": layers, "last": [0.4, 0.1, 0.2, 0.3]},
        "T2": {"transforms": "r0,r1", "layers": layers, "last": [0.1]},
    }
    draw({"group": "r0,r1", "measure": "l2", "runs": runs}, tmp_path)
    base, t2 = drawn[1].axes[0].get_lines()
    assert list(zip(*base.get_data(), strict=True)) == [(0.1, 0), (0.1, 25), (0.2, 50), (0.3, 75), (0.4, 100)]
    assert list(t2.get_ydata()) == [0, 100]
    assert base.get_marker() != t2.get_marker()  # to be told apart in grey


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
    assert [len(point["ensembles"]) for point in curves["Tm"]] == [4, 4, 2, 2]
    for curve in curves.values():
        for m, point in enumerate(curve, 1):
            assert point["instances"] == point["passes"] == m
            used = [seed for seeds in point["seeds"] for seed in seeds]
            assert len(used) == len(set(used))


def test_ensembles_with_nothing_to_average_claim_no_error(small_study: Path, tmp_path: Path) -> None:
    (group,) = read_folder(small_study)
    curves = curves_of(small_study)
    one = {
        curve: [{**point, "ensembles": point["ensembles"][:1], "seeds": point["seeds"][:1]} for point in points]
        for curve, points in curves.items()
    }
    for shown, title in ((curves, "mean ± standard error"), (one, "one of each")):
        svg = next(file for file in draw_ensembles(shown, group, tmp_path) if file.suffix == ".svg")
        assert title in svg.read_text()


def test_a_single_network_scores_as_its_run_says(small_study: Path) -> None:
    curves = curves_of(small_study)
    for curve, kind, part, m in (("PT2", "t2", "pruned", 1), ("Tm", "t3", "full", 3)):
        result = json.loads((small_study / "runs" / f"digits-fast-{kind}-s0" / "result.json").read_text())
        entry = curves[curve][m - 1]["ensembles"][0]
        assert entry["accuracy"] == result["test"][part]["accuracy"]
        assert entry["loss"] == pytest.approx(result["test"][part]["loss"])


def test_a_report_without_weights_shows_what_was_measured(small_study: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(small_study, copy, ignore=shutil.ignore_patterns("*.safetensors", "*.lock"))
    (copy / "report.html").unlink()
    assert write_report(copy).read_text() == (small_study / "report.html").read_text()


Values = dict[str, list[float]]


def comparison(
    last: Values, layers: dict[str, tuple[float, float]], *, for_its_size: Values | None = None
) -> dict[str, Any]:
    """Every model's IS in the last layer, a value a seed, and base's and the others' in all layers of the first."""
    runs = {
        model: {"layers": {name: {"mean": pair[model != "base"]} for name, pair in layers.items()}} for model in last
    }
    rising = {model: [1 - value for value in values] for model, values in last.items()}
    measures = {"l2": last, "relative": for_its_size or last, "cosine": rising, "pearson": rising}
    random = {"of": "base", "l2": [0.5], "relative": [0.8], "cosine": [0.6], "pearson": [0.6]}
    return {"group": "r0,r1,r2,r3", "seed": 0, "runs": runs, "last_layer": measures, "random": random}


LIKE = {"a": (0.5, 0.51), "b": (0.4, 0.4), "last": (0.2, 0.1)}
ONE_SEED: Values = {"base": [0.2], "T2": [0.1], "T3": [0.05]}
SEEDS: Values = {"base": [0.2, 0.21, 0.2], "T2": [0.1, 0.11, 0.1], "T3": [0.05, 0.06, 0.05]}


def growing(shown: dict[str, Any]) -> str:
    """What is said of the last layer."""
    (said,) = (note for note in invariance_sheet(shown).notes if note.startswith("The paper: the last layer"))
    return said.partition("with every head. ")[2]


def test_one_seed_shows_an_order_and_no_more() -> None:
    sheet = invariance_sheet(comparison(ONE_SEED, LIKE))
    assert [cell.text for cell in sheet.rows[-1]][:3] == ["random kernels", "0.5000", "0.8000"]
    falls = "without an error to hold it against: IS and IS / norm fall, base > T2 > T3."
    assert growing(comparison(ONE_SEED, LIKE)) == f"The order is the same here, in one seed, {falls}"
    of_other_seeds = comparison(ONE_SEED, LIKE)
    del of_other_seeds["runs"]["T3"]
    assert growing(of_other_seeds) == f"The order is the same here, in one run of each, {falls}"
    partly = growing(comparison({**SEEDS, "T3": [0.05]}, LIKE))
    assert partly == (
        "The order is the same here: IS and IS / norm fall, base > T2 > T3. Beyond the error over seeds: "
        "T2 against base; without an error to hold it against: T3 against T2."
    )
    rising = growing(comparison({"base": [0.1], "T2": [0.2], "T3": [0.3]}, LIKE))
    assert rising == "Not here, in one seed: neither IS nor IS / norm falls (T2 against base, T3 against T2)."


def test_a_head_counts_only_beyond_the_error_over_seeds() -> None:
    certain = "So it is here, beyond the error over seeds: IS and IS / norm fall, base > T2 > T3."
    assert growing(comparison(SEEDS, LIKE)) == certain
    close = growing(comparison({**SEEDS, "T3": [0.05, 0.2, 0.05]}, LIKE))
    assert close == (
        "Only in part here, in the mean over seeds: both fall beyond the error (T2 against base); "
        "both fall, but not beyond the error (T3 against T2)."
    )


def test_smaller_kernels_are_not_called_more_invariant() -> None:
    for last in (ONE_SEED, SEEDS):
        same = {model: [0.8] * len(values) for model, values in last.items()}
        assert (
            "IS falls, but IS / norm does not, so kernels are smaller, not more invariant (T2 against base"
            in growing(comparison(last, LIKE, for_its_size=same))
        )
        assert "IS / norm falls, but IS does not (T2 against base" in growing(comparison(same, LIKE, for_its_size=last))


@pytest.mark.parametrize(
    ("layers", "in_the_last", "of_the_others"),
    [
        (LIKE, "50.0 % lower", "none of 2 differs by more; a differs most and is 2.0 % higher."),
        (
            {"a": (0.5, 0.3), "b": (0.4, 0.4), "last": (0.2, 0.19)},
            "5.0 % lower",
            "1 of 2 differs by more; a differs most and is 40.0 % lower.",
        ),
        (
            {"a": (0.5, 0.3), "b": (0.4, 0.41), "last": (0.2, 0.19999)},
            "as good as the same",
            "2 of 2 differ by more; a differs most and is 40.0 % lower.",
        ),
    ],
)
def test_the_last_layer_is_held_against_the_others(
    layers: dict[str, tuple[float, float]], in_the_last: str, of_the_others: str
) -> None:
    *_, alone = invariance_sheet(comparison(ONE_SEED, layers)).notes
    said = f"Here, in one seed, its mean IS is {in_the_last} in the last layer. Of the other layers {of_the_others}"
    assert alone.endswith(said)


def test_a_network_of_one_convolution_has_no_other_layers() -> None:
    *_, last = invariance_sheet(comparison({"base": [0.2], "T2": [0.1]}, {"patches": (0.2, 0.1)})).notes
    assert last.startswith("The paper: the last layer")


def test_kernels_of_base_alone_say_nothing_of_the_papers_claims() -> None:
    assert len(invariance_sheet(comparison({"base": [0.2]}, {})).notes) == 2


def test_a_users_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    layer = {"mean": 0.5, "std": 0.1, "n": 4, "random": 0.6}
    runs = {
        "_small": {"transforms": "r0", "layers": {"a": layer, "b": layer}, "last": [0.1, 0.2]},
        "p$1^$": {"transforms": "r0", "layers": {"a": layer, "between": layer, "b": layer}, "last": [0.1, 0.3]},
    }
    shown = {"group": "r0,r1", "measure": "l2", "runs": runs}
    for path in draw(shown, tmp_path):
        if path.suffix == ".svg":
            assert "_small (r0)" in path.read_text()
            assert "p$1^$ (r0)" in path.read_text()


@pytest.mark.parametrize(("measure", "ends"), [("l2", (0.0, 1.6)), ("cosine", (0.0, 1.0))])
def test_bars_end_where_there_are_no_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measure: str, ends: tuple[float, float]
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("transnet.report.kernels.save", lambda figure, path: drawn.append(figure) or [])
    layers = {
        "a": {"mean": 0.6, "std": 1.0, "n": 4, "random": 0.6},
        "b": {"mean": 0.5, "std": None, "n": 1, "random": 1},
    }
    draw({"group": "r0,r1", "measure": measure, "runs": {"x": {"transforms": "r0", "layers": layers, "last": [0.5]}}},
         tmp_path)  # fmt: skip
    (bars,) = drawn[0].axes[0].collections
    assert [tuple(segment[:, 1]) for segment in bars.get_segments()] == [pytest.approx(ends), (0.5, 0.5)]


@pytest.mark.parametrize("measure", ["l2", "relative", "cosine", "pearson"])
def test_the_table_says_what_is_measured_and_which_way_is_invariant(
    measure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    layer = {"mean": 0.5, "std": 0.1, "n": 4, "random": 0.6}
    run = {"transforms": "r0", "layers": {"a": layer}, "last": [0.1]}
    print_comparison({"group": "r0,r1", "measure": measure, "runs": {"x": run}})
    said = " ".join(capsys.readouterr().out.split())
    assert "r0,r1" in said
    assert f"({measure}): {'lower' if measure in ('l2', 'relative') else 'higher'} is more invariant; mean ±" in said


def test_the_table_has_every_runs_layers(capsys: pytest.CaptureFixture[str]) -> None:
    layer = {"mean": 0.5, "std": 0.1, "n": 4, "random": 0.6}
    shallow = {"transforms": "r0", "layers": {"a": layer, "b": layer}, "last": [0.1]}
    deep = {"transforms": "r0", "layers": {"a": layer, "between": layer, "b": layer}, "last": [0.1]}
    for runs in ({"x": shallow, "y": deep}, {"y": deep, "x": shallow}):
        print_comparison({"group": "r0,r1", "measure": "l2", "runs": runs})
        rows = [line.split("│")[1].strip() for line in capsys.readouterr().out.splitlines() if line.count("0.6000")]
        assert rows == ["a", "between", "b"]


def test_a_group_without_its_base_knows_the_bases_epochs(small_study: Path, tmp_path: Path) -> None:
    name = "digits-fast-base-x4-s0"
    shutil.copytree(small_study / "runs" / name, tmp_path / "runs" / name)
    assert facts(read_folder(tmp_path)[0])["recipe"].startswith("fast: 1 epoch of the base")


def test_damaged_files_of_a_study_are_named(small_study: Path, tmp_path: Path) -> None:
    name = "digits-fast-base-s0"
    shutil.copytree(small_study / "runs" / name, tmp_path / "runs" / name)
    (tmp_path / "measured").mkdir()
    (tmp_path / "measured" / "digits-fast.json").write_text('{"schema": 3}')
    assert write_report(tmp_path).exists()
    (tmp_path / "runs" / name / "result.json").write_text("{}")
    with pytest.raises(TransnetError, match=r"result\.json is damaged; remove the run's folder and train it again"):
        write_report(tmp_path)


def test_names_are_drawn_as_they_are() -> None:
    assert label("d_\udcff") == "d_?"  # a folder's name that is no UTF-8
    assert label("a$b") == r"a\$b"
