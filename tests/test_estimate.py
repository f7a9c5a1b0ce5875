"""How long runs take, and studies that stop in time."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from small_runs import images_file, small_study
from transnet.cli import main
from transnet.errors import ConfigError
from transnet.runs.folder import Run
from transnet.runs.records import EpochEntry
from transnet.study.estimate import Budget, Estimate, read_duration
from transnet.study.execute import run_study
from transnet.study.plan import plan_runs
from transnet.study.results import read_runs

STUDY = """\
data = "digits"
seeds = 2
[train]
epochs = 1
train_fraction = 0.1
device = "cpu"
[variants.base]
transforms = "r0"
[variants.two]
label_smoothing = 0.1
[[compare]]
a = "two"
b = "base"
"""


@pytest.mark.parametrize(("text", "seconds"), [("25m", 1500), ("90s", 90), ("1h30m", 5400), ("0.5h", 1800)])
def test_durations_are_read(text: str, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "25", "m", "25 minutes", "-5m", "5m1h"])
def test_wrong_durations_are_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_duration(text)
    assert caught.value.field == "budget"


def test_minutes_follow_from_finished_runs_on_this_device(tmp_path: Path) -> None:
    one = small_study("distilled")
    planned = plan_runs(one, tmp_path)
    assert {Estimate(planned).seconds(run) for run in planned} == {None}
    estimate = Estimate(planned)
    passes = {run.kind: (estimate.images(run) or 0) * run.passes_per_image for run in planned}
    assert run_study(one, tmp_path, quiet=True).failed == {}
    runs = plan_runs(small_study("distilled", seeds=2), tmp_path)
    here, elsewhere = Estimate(runs, "CPU, 3 threads"), Estimate(runs, "some GPU")
    for run in runs:
        if run.seed == 0:
            assert here.seconds(run) == elsewhere.seconds(run) == 0
            assert passes[run.kind] == Run(run.path).result().cost.train_passes
        else:
            finished = Run(tmp_path / "runs" / f"digits-fast-{run.kind}-s0").result()
            assert here.seconds(run) == pytest.approx(finished.seconds)
            assert elsewhere.seconds(run)  # by the epochs of runs on any device
    for run in runs:
        assert (here.images(run) or 0) * run.passes_per_image == passes[run.kind]
    assert here.left(runs, at_once=4) == pytest.approx(max(here.seconds(run) or 0 for run in runs))


def test_other_data_are_estimated_from_runs_of_the_same_network(tmp_path: Path) -> None:
    alike = {"model": "resnet8-small", "image_size": 8}
    one = small_study("distilled", **alike)
    run_study(one, tmp_path / "digits", quiet=True)
    data = str(images_file(tmp_path / "stripes.npz"))
    others = plan_runs(small_study("distilled", data=data, **alike), tmp_path / "other")
    assert {Estimate(others).seconds(run) for run in others} == {None}
    estimate = Estimate([*plan_runs(one, tmp_path / "digits"), *others])
    base, t2 = (estimate.seconds(run) for kind in ("base", "t2") for run in others if run.kind == kind)
    assert base
    assert t2 == pytest.approx(2 * base)
    wide = plan_runs(small_study("distilled", data=data, **{**alike, "batch_size": 7}), tmp_path / "wide")
    assert {Estimate([*estimate.runs, *wide]).seconds(run) for run in wide} == {None}


def test_minutes_follow_from_the_epochs_of_a_run_that_is_not_finished(tmp_path: Path) -> None:
    (base,) = (run for run in plan_runs(small_study(epochs=10), tmp_path) if run.kind == "base")
    estimate = Estimate([base])
    assert estimate.left([base], at_once=1) is None
    Run(base.path).path.mkdir(parents=True)
    entry = EpochEntry(epoch=1, step=1, lr=0.1, loss=(1.0,), accuracy=(0.5,), seconds=2.0, images_per_second=100.0)
    for epoch in (1, 2, 3):  # of ten, two seconds each
        Run(base.path).add_metrics(replace(entry, epoch=epoch))
    estimate.refresh()
    assert estimate.left([base], at_once=1) == pytest.approx(14)


def test_a_budget_prefers_runs_that_fit_and_leaves_time_to_save(tmp_path: Path) -> None:
    run_study(small_study("distilled"), tmp_path, quiet=True)
    runs = plan_runs(small_study("distilled", seeds=2), tmp_path)
    for i, run in enumerate(run for run in runs if run.seed == 0):  # so long that the test's own seconds do not count
        file = Run(run.path).result_file
        file.write_text(json.dumps(json.loads(file.read_text()) | {"seconds": 100 * (i + 1)}))
    estimate, waiting = Estimate(runs), [run for run in runs if run.seed == 1]
    assert Budget(1000).in_order(waiting, estimate) == waiting
    short = Budget(1000)
    seconds = {run.kind: estimate.seconds(run) or 0 for run in waiting}
    short.seconds = sum(sorted(seconds.values())[:2]) / 2 + 50  # the reserve is 50 s
    fits = [seconds[run.kind] <= short.left for run in short.in_order(waiting, estimate)]
    assert fits == sorted(fits, reverse=True)
    assert len(set(fits)) == 2
    with pytest.raises(ConfigError) as caught:
        Budget(estimate.start_up / 2).check(estimate)
    assert caught.value.field == "budget"


def test_a_budget_too_short_for_a_checkpoint_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.toml").write_text(STUDY)
    assert main(["study", str(tmp_path / "s.toml"), "--budget", "2s", "--out", str(tmp_path / "out")]) == 2
    assert "--budget: 2 s is too short" in capsys.readouterr().err


@pytest.mark.slow
def test_a_study_stops_in_time_and_continues_from_a_copied_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.toml").write_text(STUDY.replace("epochs = 1", "epochs = 1500").replace("seeds = 2", "seeds = 1"))
    words = ["study", str(tmp_path / "s.toml"), "--out"]
    assert main([*words, str(tmp_path / "first"), "--budget", "40s"]) == 0
    assert "the time is used up" in capsys.readouterr().err
    begun = [path for path in (tmp_path / "first" / "runs").iterdir() if any(path.glob("state/*/manifest.json"))]
    assert begun
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    before = Run(begun[0]).metrics()
    assert main([*words, str(tmp_path / "second"), "--budget", "30s"]) == 0
    after = Run(tmp_path / "second" / "runs" / begun[0].name).metrics()
    assert after[: len(before) - 1] == before[: len(before) - 1]
    assert len(after) > len(before)


def test_a_study_is_listed_carried_out_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.toml").write_text(STUDY)
    out = tmp_path / "out"
    words = ["study", str(tmp_path / "s.toml"), "--out", str(out)]
    assert main([*words, "--dry-run"]) == 0
    listed = capsys.readouterr().out
    assert "s-two-s1" in listed
    assert "unknown minutes" in listed
    assert not out.exists()
    assert main(words) == 0
    output = capsys.readouterr()
    assert "two − base, pruned: " in output.err
    assert output.out.strip() == str(out / "report.html")
    assert "s-two-s1" in (out / "report.html").read_text()
    (series,) = read_runs(out)
    assert (series.name, {kind: len(runs) for kind, runs in series.runs.items()}) == ("s", {"base": 2, "two": 2})
    assert main([*words, "--dry-run"]) == 0
    assert "0.0 minutes left" in capsys.readouterr().out
    (out / "runs" / "copy").mkdir()
    assert main(words) == 0
    assert "copy belongs to no study" in capsys.readouterr().err


def test_a_queue_carries_out_its_files_in_their_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.toml").write_text(STUDY.replace("seeds = 2", "seeds = 1"))
    (tmp_path / "q.toml").write_text('queue = ["s.toml", {file = "s.toml", out = "deeper"}]')
    out = tmp_path / "out"
    assert main(["study", str(tmp_path / "q.toml"), "--out", str(out)]) == 0
    for folder in (out, out / "deeper"):
        assert (folder / "report.html").exists()
        assert json.loads((folder / "study.json").read_text())["groups"]["s"]["planned"] == ["s-two-s0", "s-base-s0"]
    capsys.readouterr()
    assert main(["study", str(tmp_path / "q.toml"), "digits", "--out", str(out)]) == 2


def test_a_queue_with_a_mistake_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.toml").write_text(STUDY)
    (tmp_path / "t.toml").write_text(STUDY.replace('"digits"', '"nowhere"'))
    (tmp_path / "q.toml").write_text('queue = ["s.toml", "t.toml"]')
    assert main(["study", str(tmp_path / "q.toml"), "--out", str(tmp_path / "out")]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
