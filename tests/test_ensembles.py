"""Fig. 3: the ensembles and their scores, with and without weights."""

import csv
import json
import shutil
from pathlib import Path

import pytest

from transnet.report.ensembles import Points, draw_ensembles, measure_ensembles
from transnet.report.measurement_cache import MeasurementCache
from transnet.report.page import write_report
from transnet.study.results import Series, read_runs

WEIGHTS = ("model.safetensors", "predictions.npz", "state", "logs", "*.lock")


def only_series(study: Path) -> Series:
    (series,) = read_runs(study)
    return series


def points_of(study: Path) -> Points:
    series = only_series(study)
    return measure_ensembles(series, MeasurementCache(study, series.name))


def without_weights(study: Path, target: Path) -> Path:
    """A copy of the study's folder without weights and predictions."""
    shutil.copytree(study, target, ignore=shutil.ignore_patterns(*WEIGHTS))
    return target


def sizes(points: Points, curve: str) -> list[int]:
    return [len(scores) for (of, _), scores in points.items() if of == curve]


def test_ensembles_of_one_size_share_no_network(small_study: Path) -> None:
    points = points_of(small_study)
    assert sizes(points, "base") == [4, 2, 1, 1]
    assert sizes(points, "PT2") == [4, 2, 1, 1]
    assert sizes(points, "Tm") == [4, 4, 2, 2]
    assert [sizes(points, f"T{m}") for m in (2, 3, 4)] == [[2, 1, 1], [1], [1]]
    assert all(scores[0].passes == size for (_, size), scores in points.items())


def test_ensembles_of_full_networks_are_beside_baselines_of_equal_training(small_study: Path) -> None:
    table = list(csv.DictReader((small_study / "tables" / "digits-fast-ensembles.csv").open()))
    training = {row["ensemble"]: row["training"] for row in table}
    equal = {"2 T2", "4 baselines", "2 PT2", "one T4", "2 baseline, 2× epochs"}
    assert {name for name, passes in training.items() if passes == "4"} == equal


def test_ensembles_without_members_are_named(small_study: Path, tmp_path: Path) -> None:
    copy = without_weights(small_study, tmp_path / "copy")
    (file,) = (copy / "measured").glob("*.json")
    kept = json.loads(file.read_text())
    kept["parts"] = {name: part for name, part in kept["parts"].items() if not name.startswith("T3: ")}
    file.write_text(json.dumps(kept))
    write_report(copy)
    assert "predictions: 2 T3." in (copy / "tables" / "digits-fast-ensembles.md").read_text()


def test_a_single_network_scores_as_in_its_result(small_study: Path) -> None:
    points = points_of(small_study)
    for key, kind, part in ((("PT2", 1), "t2", "pruned"), (("Tm", 3), "t3", "full")):
        result = json.loads((small_study / "runs" / f"digits-fast-{kind}-s0" / "result.json").read_text())
        score = points[key][0]
        assert score.accuracy == result["test"][part]["accuracy"]
        assert score.loss == pytest.approx(result["test"][part]["loss"])
        assert score.calibration_error is not None


def test_single_ensembles_have_no_error(small_study: Path, tmp_path: Path) -> None:
    one = {key: scores[:1] for key, scores in points_of(small_study).items()}
    svg = draw_ensembles(one, only_series(small_study), tmp_path).read_text()
    assert "m PT2, n = 1, 1, 1, 1" in svg


def test_without_weights_earlier_measurements_are_reported(small_study: Path, tmp_path: Path) -> None:
    copy = without_weights(small_study, tmp_path / "copy")
    (copy / "report.html").unlink()
    assert write_report(copy).read_text() == (small_study / "report.html").read_text()


def test_without_weights_and_measurements_only_results_are_reported(small_study: Path, tmp_path: Path) -> None:
    copy = without_weights(small_study, tmp_path / "copy")
    shutil.rmtree(copy / "measured")
    page = write_report(copy).read_text()
    assert "Table 2" in page
    assert "Fig. 4" in page
    assert "Fig. 3" not in page
    assert "Fig. 5" not in page


def test_predictions_suffice_without_weights(small_study: Path, tmp_path: Path) -> None:
    copy = without_weights(small_study, tmp_path / "copy")
    shutil.rmtree(copy / "measured")
    for path in small_study.glob("runs/*/predictions.npz"):
        shutil.copy(path, copy / "runs" / path.parent.name)
    found, expected = points_of(copy), points_of(small_study)
    assert found == expected
    assert {key for key in found if key[0] in ("base", "PT2", "Tm")} == {
        *(("base", m) for m in range(1, 5)), *(("PT2", m) for m in range(1, 5)), *(("Tm", m) for m in range(1, 5))
    }  # fmt: skip


def test_predictions_of_other_weights_are_not_used(small_study: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(small_study, copy)
    shutil.rmtree(copy / "measured")
    path = copy / "runs" / "digits-fast-t2-s1" / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_sha256": "of other weights"}))
    assert sizes(points_of(copy), "PT2") == [4, 1]  # by its result; no ensemble contains it
    assert sizes(points_of(small_study), "PT2") == [4, 2, 1, 1]


def test_networks_without_predictions_count_with_their_results(small_study: Path, tmp_path: Path) -> None:
    copy = without_weights(small_study, tmp_path / "copy")
    (file,) = (copy / "measured").glob("*.json")
    kept = json.loads(file.read_text())
    del kept["parts"]["Tm: digits-fast-t3-s1"]
    file.write_text(json.dumps(kept))
    before, after = (points_of(study)["Tm", 3] for study in (small_study, copy))
    assert after[0] == before[0]
    assert after[1].accuracy == before[1].accuracy
    assert after[1].calibration_error is None
