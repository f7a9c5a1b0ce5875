"""Heads one by one: from results alone, from predictions, and from earlier measurements."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from made_up_runs import series
from transnet.report.heads import heads_table
from transnet.report.measurement_cache import MeasurementCache
from transnet.report.table_format import Table
from transnet.study.results import Series, read_runs


def rows(table: Table | None) -> dict[tuple[str, str], list[object]]:
    assert table is not None
    return {(str(row[0].value), str(row[1].value)): [cell.value for cell in row[2:]] for row in table.rows}


def only_series(study: Path) -> Series:
    (found,) = read_runs(study)
    return found


def test_single_heads_and_all_heads_come_from_the_results(tmp_path: Path) -> None:
    made = series({"base": [76.0, 76.2], "t3": [78.0, 78.2, 78.4]}, full=1)
    found = heads_table(made, MeasurementCache(tmp_path, made.name))
    table = rows(found)
    assert list(table) == [("T3", "r0"), ("T3", "r1"), ("T3", "r2"), ("T3", "r0 r1 r2")]
    alone, flip, n, to_r0, flip_to_r0, passes = table["T3", "r0 r1 r2"]
    assert (n, passes) == (3, 3)
    assert (alone, flip) == pytest.approx((69.2, 79.2))
    assert (to_r0, flip_to_r0) == pytest.approx((1.0, 1.0))
    assert found is not None
    assert "T3 r0 r1, T3 r0 r2, T3 r1 r2." in found.notes[1]


def test_other_subsets_come_from_predictions_and_are_kept(small_study: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(small_study, copy)
    shutil.rmtree(copy / "measured")
    (saved, *_) = (run.predictions for run in only_series(copy).of("t3"))
    assert saved is not None
    pair = saved.scores[:, [0, 2]].mean(1, np.float32)
    study = only_series(copy)
    table = heads_table(study, MeasurementCache(copy, study.name))
    assert len(rows(table)) == 3 + 7 + 15
    first = MeasurementCache(copy, study.name).parts["heads r0 r2: digits-fast-t3-s0"]
    assert first["found"]["alone"] == pytest.approx(100 * (pair.argmax(1) == saved.labels).mean())  # type: ignore[index]
    for path in copy.glob("runs/*/predictions.npz"):
        path.unlink()
    study = only_series(copy)
    assert heads_table(study, MeasurementCache(copy, study.name)) == table


def test_a_study_of_baselines_has_no_such_table(tmp_path: Path) -> None:
    made = series({"base": [76.0, 76.2]})
    assert heads_table(made, MeasurementCache(tmp_path, made.name)) is None
