"""The runs of a study: shared between studies, with permanent names, comparable."""

from pathlib import Path

import pytest

from small_runs import small_study
from transnet.cli.reproduce import Target
from transnet.errors import ConfigError
from transnet.study.file import Study, read_study
from transnet.study.plan import PlannedRun, plan_runs, read_notes, unplanned, write_notes
from transnet.study.results import KINDS, parse_name
from transnet.train.trainer import train

TARGETS = Target.__args__  # type: ignore[attr-defined]


def study(target: str = "all", *, data: str = "digits", seeds: int = 3, **train: object) -> Study:
    return read_study(target).changed(data=data, seeds=seeds, train=train)


def planned(target: str = "all", *, out: str = "somewhere", **settings: object) -> list[PlannedRun]:
    return plan_runs(study(target, **settings), out)  # type: ignore[arg-type]


def test_all_is_the_union_of_the_papers_targets() -> None:
    everything = [run.name for run in planned()]
    assert len(everything) == len(set(everything))
    paper = [target for target in TARGETS if target not in ("all", "distilled")]
    assert set(everything) == {run.name for target in paper for run in planned(target)}


def test_self_distillation_is_the_only_difference() -> None:
    runs = {run.kind: run.config for run in planned("distilled", seeds=1)}
    assert list(runs) == ["base-x2", "t2", "t2-taught", "base"]
    plain, distilled = vars(runs["t2"]), vars(runs["t2-taught"])
    assert {name for name in plain if plain[name] != distilled[name]} == {"distillation", "out"}


def test_more_seeds_only_add_runs() -> None:
    few, many = planned("pruned", seeds=2), planned("pruned", seeds=3)
    assert {run.name: run.config for run in few}.items() <= {run.name: run.config for run in many}.items()
    assert {run.seed for run in many if run not in few} == {2}


@pytest.mark.parametrize(("seeds", "members"), [(1, 4), (6, 6)])
def test_ensembles_have_at_least_four_base_and_four_t2(seeds: int, members: int) -> None:
    runs = planned("ensembles", seeds=seeds)
    counts = [sum(run.kind == kind for run in runs) for kind in ("base", "t2", "t3", "t4")]
    assert counts == [members, members, seeds, seeds]
    assert all(run.save_predictions for run in runs)


@pytest.mark.parametrize("recipe", ["fast", "paper"])
@pytest.mark.parametrize("m", [2, 3, 4])
def test_equal_compute_means_equal_passes_and_the_same_recipe(recipe: str, m: int) -> None:
    runs = {run.kind: run for run in planned("pruned", seeds=1, recipe=recipe)}
    heads, longer = runs[f"t{m}"].config, runs[f"base-x{m}"].config
    assert longer.epochs == m * heads.epochs
    assert (runs[f"t{m}"].heads, runs[f"base-x{m}"].heads) == (m, 1)
    assert {name for name, value in vars(heads).items() if value != getattr(longer, name)} == {
        "transforms", "epochs", "out",
    }  # fmt: skip


def test_the_ablation_is_the_papers() -> None:
    runs = {run.kind: run.config for run in planned("ablation", seeds=1)}
    assert (runs["alg"].transforms, runs["alg"].heads) == ("r0,r1", "shared")
    assert (runs["arch"].transforms, runs["arch"].heads) == ("r0,r0", "separate")


@pytest.mark.parametrize("data", ["digits", "my-base-t2", "data/folder-s1", "images.npz"])
def test_a_name_gives_series_kind_and_seed(data: str) -> None:
    for run in planned(data=data) + planned("distilled", data=data):
        series, kind, seed = parse_name(run.name, {}) or ("", "", -1)
        assert (kind, seed) == (run.kind, run.seed)
        assert run.name == f"{series}-{kind}-s{seed}"
        assert "/" not in run.name


def test_names_of_other_studies_are_split_at_the_last_hyphen() -> None:
    assert parse_name("widths-narrow-s3", {}) == ("widths", "narrow", 3)
    assert parse_name("a-b-t2-taught-s3", {}) == ("a-b", "t2-taught", 3)
    assert parse_name("notes", {}) is None
    assert set(KINDS) == {run.kind for target in ("all", "distilled") for run in planned(target)}


def test_a_variant_whose_name_has_hyphens_belongs_to_its_study(tmp_path: Path) -> None:
    (tmp_path / "widths.toml").write_text('data = "digits"\n[variants.tiny-base]\n[variants.wide-net]\n')
    study = read_study(tmp_path / "widths.toml")
    runs = plan_runs(study, tmp_path)
    write_notes(study, runs, tmp_path, failed=())
    found = [parse_name(run.name, read_notes(tmp_path)) for run in runs]
    assert found == [("widths", "tiny-base", 0), ("widths", "wide-net", 0)]


def test_a_run_with_other_settings_is_refused_before_anything_trains(tmp_path: Path) -> None:
    runs = plan_runs(small_study("pruned"), tmp_path)
    train(next(run.config for run in runs if run.kind == "base-x2"), quiet=True)
    assert plan_runs(small_study("pruned"), tmp_path) == runs
    assert plan_runs(small_study("pruned", data="/elsewhere/digits", device="cuda", checkpoint_every=7), tmp_path)
    with pytest.raises(ConfigError, match="epochs") as caught:
        plan_runs(small_study("pruned", epochs=2), tmp_path)
    assert caught.value.field == "out"
    assert "base-x2-s0" in str(caught.value)


def test_a_study_of_the_same_name_with_other_settings_is_refused(tmp_path: Path) -> None:
    first = small_study("pruned")
    write_notes(first, plan_runs(first, tmp_path), tmp_path, failed=())
    for also in (small_study("ablation", seeds=2), small_study("pruned", recipe="paper"), small_study(device="cuda")):
        assert plan_runs(also, tmp_path)
    with pytest.raises(ConfigError, match="lr") as caught:
        plan_runs(small_study("pruned", lr=0.3), tmp_path)
    assert caught.value.field == "out"


def test_several_studies_share_the_notes_of_a_folder(tmp_path: Path) -> None:
    for one in (small_study("pruned"), small_study("ablation"), small_study("pruned", recipe="paper")):
        write_notes(one, plan_runs(one, tmp_path), tmp_path, failed=["x"])
    notes = read_notes(tmp_path)
    assert set(notes) == {"digits-fast", "digits-paper"}
    assert {"alg", "t4", "base"} <= set(notes["digits-fast"].variants)
    assert notes["digits-paper"].failed == ("x",)


def test_runs_that_no_study_planned_are_named(tmp_path: Path) -> None:
    first = small_study("pruned")
    for name in ("digits-fast-t2-s0", "digits-fast-t2-s9", "copy"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    assert unplanned(tmp_path) == []  # a folder from before its studies were noted
    write_notes(first, plan_runs(first, tmp_path), tmp_path, failed=())
    assert unplanned(tmp_path) == ["copy", "digits-fast-t2-s9"]


def test_a_study_needs_data(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_runs(read_study("pruned"), tmp_path)
    assert caught.value.field == "data"
