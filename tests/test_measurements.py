"""A study in stretches: the weights of a stretch are gone in the next, and nothing is lost or trained twice."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from small_runs import command, images_file, wait_for, workers
from transnet.errors import DataError
from transnet.report.measurements import Measured, measure
from transnet.report.page import write_report
from transnet.runs.folder import Run
from transnet.runs.records import encode
from transnet.study.answers import kept_answers
from transnet.study.old_results import FinishedRun, Group, read_folder
from transnet.study.plan import Study, plan
from transnet.study.reproduce import reproduce

WEIGHTS = ("model.safetensors", "state", "logs", "*.lock")


def moved(study: Path, target: Path) -> Path:
    """The study's folder as it comes back from a machine: without weights, and in another place."""
    shutil.copytree(study, target, ignore=shutil.ignore_patterns(*WEIGHTS))
    return target


def results(study: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in study.glob("runs/*/result.json")}


def only_group(study: Path) -> Group:
    (group,) = read_folder(study)
    return group


def carried_out(target: Any, out: Path, **settings: Any) -> dict[str, bytes]:
    study = Study(target, **{"seeds": 2, "epochs": 1, "device": "cpu", "out": str(out), **settings})
    outcome, page = reproduce(study, quiet=True)
    assert not outcome.failed
    assert page == out / "report.html"
    return results(out)


@pytest.fixture(scope="module")
def stretches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`small_study` in two stretches: first two seeds of what Table 2 needs, then the rest."""
    folder = tmp_path_factory.mktemp("stretches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRANSNET_CACHE", str(folder / "cache"))
        before = carried_out("pruned", folder / "first", data="digits", train_fraction=0.1)
        second = moved(folder / "first", folder / "second")
        after = carried_out("all", second, data="digits", train_fraction=0.1, checkpoint_every=3)
    assert len(before) == 14
    assert len(after) == 22
    assert before.items() <= after.items()  # nothing was trained twice
    assert not (second / "runs" / "digits-fast-t2-s0" / "model.safetensors").exists()
    return second


@pytest.mark.parametrize("table", ["pruned", "full", "ablation", "generalization", "invariance"])
def test_tables_are_those_of_a_study_in_one_go(stretches: Path, small_study: Path, table: str) -> None:
    for suffix in (".md", ".csv"):
        name = f"tables/digits-fast-{table}{suffix}"
        assert (stretches / name).read_text() == (small_study / name).read_text()


def test_kernels_are_those_of_a_study_in_one_go(stretches: Path, small_study: Path) -> None:
    found, expected = (measure(only_group(study), study)["invariance"] for study in (stretches, small_study))
    assert found == expected


def test_ensembles_are_those_of_a_study_in_one_go(stretches: Path, small_study: Path) -> None:
    found, expected = (measure(only_group(study), study)["ensembles"] for study in (stretches, small_study))
    assert found == expected
    for curve in ("base", "PT2"):
        assert [len(point["ensembles"]) for point in found[curve]] == [4, 2, 1, 1]  # the last two across stretches


def test_without_answers_only_ensembles_whose_members_share_a_stretch_are_there(
    stretches: Path, small_study: Path, tmp_path: Path
) -> None:
    copy = moved(stretches, tmp_path / "copy")
    (file,) = (copy / "measured").glob("*.json")
    kept = json.loads(file.read_text())
    kept["parts"] = {name: part for name, part in kept["parts"].items() if name.count("+") < 2}
    file.write_text(json.dumps(kept))
    expected = measure(only_group(small_study), small_study)["ensembles"]
    found = measure(only_group(copy), copy)["ensembles"]
    assert found == {"base": expected["base"][:2], "PT2": expected["PT2"][:2], "Tm": expected["Tm"]}
    write_report(copy)
    assert "m PT2, n = 4, 2<" in (copy / "report.html").read_text()


def planned(out: Path) -> set[str]:
    """What `reproduce ensembles` would train."""
    study = Study("ensembles", data="digits", seeds=2, epochs=1, train_fraction=0.1, device="cpu", out=str(out))
    return {run.name for run in plan(study) if not Run(run.config.out).finished}


def test_ensembles_take_further_seeds_only_where_members_can_not_be_had(small_study: Path, tmp_path: Path) -> None:
    further = {f"digits-fast-{kind}-s{seed}" for kind in ("base", "t2") for seed in range(4, 8)}
    assert planned(small_study) == set()
    copy = moved(small_study, tmp_path / "copy")
    assert planned(copy) == set()  # all of them were averaged before
    again = Run(copy / "runs" / "digits-fast-t2-s1")
    before = again.result_file.read_text()
    again.result_file.write_text(json.dumps({**json.loads(before), "model_sha256": "of other weights"}))
    assert planned(copy) == further  # but not with one that was trained again
    again.result_file.write_text(before)
    (file,) = (copy / "measured").glob("*.json")
    file.unlink()
    assert planned(copy) == further  # weights, answers and ensembles are gone
    shutil.rmtree(copy / "runs" / "digits-fast-base-s2")
    assert planned(copy) == further
    for path in (copy / "runs").glob("*-s[0123]"):
        shutil.copy(small_study / "runs" / path.name / "model.safetensors", path)
    assert planned(copy) == {"digits-fast-base-s2"}


def test_runs_keep_their_answers_until_all_their_ensembles_are_measured(stretches: Path, tmp_path: Path) -> None:
    first = stretches.with_name("first")
    group = only_group(first)
    members = [run for kind in ("base", "t2") for run in group.runs[kind]]
    answers = first / "measured" / "answers"
    assert sorted(path.stem for path in answers.iterdir()) == sorted(run.name for run in members)
    for run in members:
        said = kept_answers(run.path, run.mark)
        assert said is not None
        assert said.passes == 1
        right = (said.logits.argmax(1) == said.labels).double().mean().item()
        assert right == pytest.approx(run.score("pruned")["accuracy"])
    assert kept_answers(members[0].path, "another network") is None
    damaged = moved(first, tmp_path / "copy") / "measured" / "answers" / f"{members[0].name}.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:100])
    assert kept_answers(tmp_path / "copy" / "runs" / members[0].name, members[0].mark) is None
    assert not list((stretches / "measured" / "answers").iterdir())


def test_a_study_that_is_killed_counts_the_seeds_that_it_came_to(tmp_path: Path) -> None:
    carried_out("invariance", tmp_path, data="digits", seeds=1, train_fraction=0.1)
    words = "reproduce invariance --data digits --seeds 3 --epochs 1 --train-fraction 0.1 --device cpu --jobs 1"
    study = command("-m", "transnet", *words.split(), "--out", tmp_path)
    wait_for(lambda: len(results(tmp_path)) > 5)
    study.kill()
    study.communicate()
    wait_for(lambda: not workers(tmp_path))
    group = only_group(tmp_path)
    assert len(group.of("t4")) == 2
    write_report(tmp_path)
    assert "kernels: digits-fast-t4-s1" in (tmp_path / "measured" / "digits-fast.json").read_text()


def test_a_folder_without_weights_reports_the_same_again(stretches: Path, tmp_path: Path) -> None:
    copy = moved(stretches, tmp_path / "copy")
    (copy / "report.html").unlink()
    assert write_report(copy).read_text() == (stretches / "report.html").read_text()


def test_results_without_weights_that_nothing_was_measured_on(small_study: Path, tmp_path: Path) -> None:
    copy = moved(small_study, tmp_path / "copy")
    shutil.rmtree(copy / "measured")
    page = write_report(copy).read_text()
    assert "Table 2" in page
    assert "Fig. 4" in page
    assert "Fig. 3" not in page
    assert "Fig. 5" not in page


def test_networks_that_are_gone_count_with_what_their_runs_say(small_study: Path, tmp_path: Path) -> None:
    copy = moved(small_study, tmp_path / "copy")
    (file,) = (copy / "measured").glob("*.json")
    kept = json.loads(file.read_text())
    del kept["parts"]["Tm: digits-fast-t3-s1"]
    file.write_text(json.dumps(kept))
    expected, found = (measure(only_group(study), study)["ensembles"] for study in (small_study, copy))
    (t3,) = [point for point in found["Tm"] if point["instances"] == 3]
    before = expected["Tm"][2]["ensembles"]
    assert t3["ensembles"][0] == before[0]
    assert t3["ensembles"][1] == {name: pytest.approx(before[1][name]) for name in ("accuracy", "loss", "n", "passes")}
    assert found["base"] == expected["base"]
    write_report(copy)
    table = (copy / "tables" / "digits-fast-ensembles.md").read_text()
    assert "Of 1 of these" in table
    assert "Of 1 of these" not in (small_study / "tables" / "digits-fast-ensembles.md").read_text()


def test_a_run_that_was_trained_again_is_measured_again(tmp_path: Path) -> None:
    def run(mark: str) -> FinishedRun:
        return FinishedRun("a", "t2", 0, tmp_path, {"model_sha256": mark}, [])

    file = tmp_path / "measured.json"
    assert Measured(file).part("it", [run("first")], lambda: {"value": 1}) == {"value": 1}
    assert Measured(file).part("it", [run("first")], lambda: {"value": 2}) == {"value": 1}
    assert Measured(file).part("it", [run("second")], lambda: {"value": 2}) == {"value": 2}
    assert Measured(file).part("it", [run("third")], lambda: None) is None  # its weights or data are gone
    assert Measured(file).part("it", [run("second")], lambda: {"value": 3}) == {"value": 2}


def test_data_that_lies_elsewhere_is_the_same_if_it_is_called_and_made_the_same(tmp_path: Path) -> None:
    for place, seed in (("here", 0), ("there", 0), ("wrong", 1)):
        (tmp_path / place).mkdir()
        images_file(tmp_path / place / "stripes.npz", seed=seed)
    first = carried_out("invariance", tmp_path / "first", seeds=1, data=str(tmp_path / "here" / "stripes.npz"))
    second = moved(tmp_path / "first", tmp_path / "second")
    (tmp_path / "here" / "stripes.npz").unlink()
    with pytest.raises(DataError, match=r"is not what .*stripes-fast-t4-s0 was trained on"):
        carried_out("ensembles", second, seeds=1, data=str(tmp_path / "wrong" / "stripes.npz"))
    assert results(second) == first
    with pytest.raises(DataError, match="is not what"):  # nothing is left to train, but the report would be another's
        carried_out("invariance", second, seeds=1, data=str(tmp_path / "wrong" / "stripes.npz"))
    assert carried_out("invariance", second, seeds=1, data=str(tmp_path / "gone" / "stripes.npz")) == first
    after = carried_out("ensembles", second, seeds=1, data=str(tmp_path / "there" / "stripes.npz"))
    assert len(after) == 10
    assert first.items() <= after.items()


def test_weights_without_the_data_are_reported_without_ensembles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = images_file(tmp_path / "stripes.npz"), tmp_path / "study"
    carried_out("invariance", out, data=str(file))
    before = measure(only_group(out), out)
    assert before["ensembles"]
    shutil.rmtree(out / "measured")
    file.unlink()
    capsys.readouterr()
    page = write_report(out).read_text()
    assert "Fig. 5" in page
    assert "Fig. 3" not in page
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("stripes-fast: ensembles that were not measured before are left out: stripes.npz: no")
    assert measure(only_group(out), out)["invariance"] == before["invariance"]
    images_file(file)  # where it is there again, nothing is missing
    assert measure(only_group(out), out, data=str(file)) == before


def test_what_is_kept_names_no_place_of_the_machine(small_study: Path) -> None:
    kept = moved(small_study, small_study.with_name(small_study.name + "-kept"))
    files = [path for path in kept.rglob("*") if path.is_file() and path.suffix in (".json", ".jsonl", ".html", ".md")]
    assert len(files) > 60
    for path in files:
        assert str(small_study) not in path.read_text(), path
    command = json.loads((kept / "runs" / "digits-fast-t2-s1" / "result.json").read_text())["command"]
    assert "--out digits-fast-t2-s1" in command


def test_runs_that_saw_different_data_are_not_compared(small_study: Path, tmp_path: Path) -> None:
    copy = moved(small_study, tmp_path / "copy")
    changed = Run(copy / "runs" / "digits-fast-t2-s1")
    result = encode(changed.result())
    result["config"]["data"]["fingerprint"] = "another"
    changed.result_file.write_text(json.dumps(result))
    with pytest.raises(ValueError, match="digits-fast-t2-s1 saw different data"):
        write_report(copy)


def test_a_backbone_without_a_spatial_kernel_has_tables_and_no_kernels(
    small_study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "study"
    shutil.copytree(small_study, copy)
    shutil.rmtree(copy / "measured")
    monkeypatch.setattr("transnet.report.measurements.kernels", lambda model: {})
    (group,) = read_folder(copy)
    assert measure(group, copy)["invariance"] is None
    assert (copy / "tables" / "digits-fast-invariance.md").exists()
    write_report(copy)
    assert not (copy / "tables" / "digits-fast-invariance.md").exists()
    assert (copy / "tables" / "digits-fast-pruned.md").exists()
