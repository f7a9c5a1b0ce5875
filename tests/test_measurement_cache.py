"""Measurements are kept until their networks change."""

from dataclasses import dataclass, replace
from pathlib import Path

from made_up_runs import result
from transnet.report.measurement_cache import MeasurementCache
from transnet.study.results import FinishedRun


@dataclass(frozen=True)
class Value:
    value: int


def run(sha256: str) -> FinishedRun:
    return FinishedRun("a", "t2", 0, Path(), replace(result("t2", 80), model_sha256=sha256), [])


def test_a_retrained_run_is_measured_again(tmp_path: Path) -> None:
    def measure(sha256: str, found: Value | None) -> Value | None:
        return MeasurementCache(tmp_path, "series").get(Value, "it", [run(sha256)], lambda: found)

    assert measure("first", Value(1)) == Value(1)
    assert measure("first", Value(2)) == Value(1)
    assert measure("second", Value(2)) == Value(2)
    assert measure("third", None) is None  # its weights and predictions are gone
    assert measure("second", Value(3)) == Value(2)


def test_a_file_without_entries_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "measured").mkdir()
    (tmp_path / "measured" / "series.json").write_text('{"schema": 3}')
    assert MeasurementCache(tmp_path, "series").get(Value, "it", [run("first")], lambda: Value(1)) == Value(1)
