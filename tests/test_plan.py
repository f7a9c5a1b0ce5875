"""What a study trains: runs are shared, named for good, and comparable."""

from pathlib import Path
from typing import Any

import pytest

from transnet.errors import ConfigError
from transnet.study.plan import KINDS, PAPER, TARGETS, Study, parse_name, plan
from transnet.train.trainer import train


def study(target: Any = "all", **settings: Any) -> Study:
    return Study(target, **{"data": "digits", "out": "somewhere", **settings})


def names(**settings: Any) -> list[str]:
    return [run.name for run in plan(study(**settings))]


def test_all_is_the_union_of_the_paper_s_and_trains_nothing_twice() -> None:
    everything = names()
    assert len(everything) == len(set(everything))
    assert set(everything) == {name for target in PAPER for name in names(target=target)}
    assert set(TARGETS) - set(PAPER) == {"taught"}


def test_teaching_is_all_that_differs() -> None:
    runs = {run.kind: run.config for run in plan(study("taught", seeds=1))}
    assert list(runs) == ["base-x2", "t2", "t2-taught", "base"]
    plain, taught = vars(runs["t2"]), vars(runs["t2-taught"])
    assert {name for name in plain if plain[name] != taught[name]} == {"distillation", "out"}


def test_more_seeds_only_add_runs() -> None:
    few, many = plan(study("pruned", seeds=2)), plan(study("pruned", seeds=3))
    assert {run.name: run.config for run in few}.items() <= {run.name: run.config for run in many}.items()
    assert {run.seed for run in many if run not in few} == {2}


def test_ensembles_have_four_base_and_four_t2() -> None:
    runs = plan(study("ensembles", seeds=1))
    assert [sum(run.kind == kind for run in runs) for kind in ("base", "t2", "t3", "t4")] == [4, 4, 1, 1]


@pytest.mark.parametrize("recipe", ["fast", "paper"])
@pytest.mark.parametrize("m", [2, 3, 4])
def test_equal_compute_means_equal_passes_and_the_same_recipe(recipe: str, m: int) -> None:
    runs = {run.kind: run.config for run in plan(study("pruned", seeds=1, recipe=recipe))}
    heads, longer = runs[f"t{m}"], runs[f"base-x{m}"]
    assert longer.epochs == m * heads.epochs
    assert len(heads.transforms.split(",")) == m
    differing = {name for name, value in vars(heads).items() if value != getattr(longer, name)}
    assert differing == {"transforms", "epochs", "out"}


def test_the_ablation_is_the_paper_s() -> None:
    runs = {run.kind: run.config for run in plan(study("ablation", seeds=1))}
    assert (runs["alg"].transforms, runs["alg"].heads) == ("r0,r1", "shared")
    assert (runs["arch"].transforms, runs["arch"].heads) == ("r0,r0", "separate")


def test_a_name_says_what_the_run_is() -> None:
    for data in ("digits", "my-base-t2", "data/folder-s1", "images.npz"):
        for run in plan(study(data=data)) + plan(study("taught", data=data)):
            group, kind, seed = parse_name(run.name) or ("", "", -1)
            assert (kind, seed) == (run.kind, run.seed)
            assert run.name == f"{group}-{kind}-s{seed}"
            assert "/" not in run.name
    assert parse_name("notes") is None
    assert set(KINDS) == {run.kind for target in ("all", "taught") for run in plan(study(target))}


def test_a_folder_with_other_settings_is_refused_before_anything_trains(tmp_path: Path) -> None:
    small = {"out": str(tmp_path), "seeds": 1, "epochs": 1, "train_fraction": 0.1, "device": "cpu"}
    train(next(run.config for run in plan(study("pruned", **small)) if run.kind == "base-x2"), quiet=True)
    assert plan(study("pruned", **small))
    assert plan(study("pruned", **{**small, "device": "cuda", "checkpoint_every": 7, "data": "/elsewhere/digits"}))
    with pytest.raises(ConfigError, match="epochs: 1 before, 2 now; give another `out`"):
        plan(study("pruned", **{**small, "epochs": 2}))


def test_curves_may_have_fewer_points() -> None:
    assert {run.config.evaluate_every for run in plan(study())} == {1}
    assert {run.config.evaluate_every for run in plan(study(evaluate_every=10))} == {10}
    with pytest.raises(ConfigError, match="evaluate_every: -1 was given; at least 0"):
        plan(study(evaluate_every=-1))


@pytest.mark.parametrize("wrong", [{"seeds": 0}, {"epochs": 0}, {"jobs": 0}, {"on": "ray", "jobs": 2, "device": "cpu"}])
def test_settings_that_cannot_work(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"was given; at least 1|leave it out"):
        study(**wrong)
