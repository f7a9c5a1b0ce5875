"""Study files: their entries, and errors that name the file, the line and the key of a mistake."""

from pathlib import Path

import pytest

from transnet.errors import ConfigError, FileError
from transnet.study.file import builtin_names, read_study
from transnet.study.plan import plan_runs

GOOD = """\
data = "digits"
seeds = 2
save_predictions = true

[train]
epochs = 10
lr = 0.05

[variants.base]
transforms = "r0"
times = 2
seeds = [7, 9]

[variants.wide-t2]
label_smoothing = 0.1

[[compare]]
a = "wide-t2"
b = "base"
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_file_becomes_runs(tmp_path: Path) -> None:
    study = read_study(write(tmp_path / "widths.toml", GOOD))
    runs = {run.name: run for run in plan_runs(study, tmp_path / "out")}
    assert set(runs) == {f"widths-{name}" for name in ("base-s7", "base-s9", "wide-t2-s0", "wide-t2-s1")}
    base, t2 = runs["widths-base-s9"].config, runs["widths-wide-t2-s1"].config
    assert (base.transforms, base.epochs, base.lr, base.seed) == ("r0", 20, 0.05, 9)
    assert (t2.transforms, t2.epochs, t2.label_smoothing, t2.seed) == ("r0,r1", 10, 0.1, 1)
    assert all(run.save_predictions for run in runs.values())
    assert [(pair.a, pair.b) for pair in study.compare] == [("wide-t2", "base")]


def test_the_command_line_replaces_data_and_adds_seeds(tmp_path: Path) -> None:
    study = read_study(write(tmp_path / "x.toml", GOOD)).changed(data="photos/", seeds=1)
    names = [run.name for run in plan_runs(study, tmp_path)]
    assert set(names) == {"x-base-s0", "x-base-s7", "x-base-s9", "x-wide-t2-s0"}
    assert {run.config.data for run in plan_runs(study, tmp_path)} == {"photos"}


def test_variants_of_another_file_can_be_chosen_and_changed(tmp_path: Path) -> None:
    write(tmp_path / "first.toml", GOOD)
    text = 'from = "first.toml"\nuse = ["base"]\n[train]\nlr = 0.1\n[variants.base]\nseeds = 1\n'
    study = read_study(write(tmp_path / "second.toml", text))
    (run,) = plan_runs(study, tmp_path)
    assert run.name == "first-base-s0"  # the same runs, so finished ones count
    assert (run.config.epochs, run.config.lr) == (20, 0.1)
    assert study.compare == ()


def test_a_queue_names_files_and_their_folders(tmp_path: Path) -> None:
    write(tmp_path / "first.toml", GOOD)
    text = 'queue = ["first.toml", {file = "pruned", out = "cifar"}]'
    queue = read_study(write(tmp_path / "q.toml", text)).queue
    assert [(one.name, out) for one, out in queue] == [("first", ""), ("{data}-{recipe}", "cifar")]


@pytest.mark.parametrize("name", builtin_names())
def test_every_built_in_study_can_be_planned(name: str, tmp_path: Path) -> None:
    study = read_study(name)
    for one in [one for one, _ in study.queue] or [study]:
        assert plan_runs(one.changed(data=one.data or "cifar100"), tmp_path)


@pytest.mark.parametrize(
    ("before", "after", "line", "word"),
    [
        ("seeds = 2", "seed = 2", 2, "'seed'"),
        ("seeds = 2", "seeds = 0", 2, "seeds"),
        ("seeds = 2", "seeds = true", 2, "seeds"),
        ("seeds = [7, 9]", "seeds = [7, 7]", 12, "seeds"),
        ("seeds = [7, 9]", "seeds = [-1]", 12, "seeds"),
        ("save_predictions = true", "save_predictions = 1", 3, "save_predictions"),
        ("lr = 0.05", "learning_rate = 0.05", 7, "'learning_rate'"),
        ("lr = 0.05", "lr = -1.0", 7, "lr"),
        ("lr = 0.05", 'lr = "fast"', 7, "lr"),
        ("lr = 0.05", "lr = [0.1, 0.2]", 7, "lr"),
        ("lr = 0.05", 'recipe = "quick"', 7, "recipe"),
        ("lr = 0.05", 'data = "cifar10"', 7, "'data'"),
        ("lr = 0.05", 'transforms = "r7"', 7, "r7"),
        ("lr = 0.05", 'milestones = "x"', 7, "milestones"),
        ("seeds = [7, 9]", "seeds = [\n7,\n7]", 12, "seeds"),
        ('transforms = "r0"', 'transforms = "r7"', 10, "r7"),
        ('transforms = "r0"', "transfrom = 'r0'", 10, "'transfrom'"),
        ("times = 2", "times = 0", 11, "times"),
        ("times = 2", "seed = 3", 11, "'seed'"),
        ("label_smoothing = 0.1", "label_smoothing = 2", 15, "label_smoothing"),
        ("[variants.wide-t2]", '[variants."wide t2"]', 14, "wide t2"),
        ('a = "wide-t2"', 'a = "t2"', 18, "'t2'"),
        ('b = "base"', 'c = "base"', 19, "'c'"),
        ("seeds = 2", 'use = ["base"]', 2, "use"),
        ("seeds = 2", 'name = "a/b"', 2, "name"),
        ("seeds = 2", 'queue = ["x.toml"]', 1, "queue"),
        ("[train]", "[[train]]", 5, "train"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_key(
    tmp_path: Path, before: str, after: str, line: int, word: str
) -> None:
    assert before in GOOD
    with pytest.raises(ConfigError) as caught:
        read_study(write(tmp_path / "x.toml", GOOD.replace(before, after)))
    assert f"x.toml, line {line}: " in str(caught.value)
    assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a = \n", "line 1"),
        ("x" * 10_000, "not a TOML"),
        ("", "no variants"),
        ("queue = []", "line 1: queue"),
        ('queue = ["nowhere.toml"]', "line 1: .*nowhere.toml does not exist"),
        ('from = "nothing"', "line 1: .*unknown study 'nothing'"),
        ('from = "x.toml"', "leads back"),
        ('queue = ["x.toml"]', "leads back"),
        ('from = "kinds"\nuse = ["base", "t5"]', "line 2: .*'t5'"),
    ],
)
def test_files_that_are_no_study_are_refused(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises((ConfigError, FileError), match=word):
        read_study(write(tmp_path / "x.toml", text))


def test_sources_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    for source in ("unheard-of", tmp_path / "no.toml", tmp_path / "folder.toml", tmp_path / "bytes.toml"):
        with pytest.raises(FileError, match=Path(source).name):
            read_study(source)


def test_options_are_taken_from_a_study_that_needs_validation_images(tmp_path: Path) -> None:
    weights = "[train]\nval_fraction = 0.1\n[variants.a]\nlr = 0.1\n"
    chosen = '[variants.best]\nbest_of = "weights.toml"\n'
    write(tmp_path / "weights.toml", weights)
    study = read_study(write(tmp_path / "x.toml", chosen))
    assert study.variants["best"].best_of == read_study(tmp_path / "weights.toml")
    write(tmp_path / "weights.toml", weights.replace("val_fraction = 0.1", ""))
    with pytest.raises(ConfigError, match=r"x\.toml, line 2: best_of: .*val_fraction"):
        read_study(tmp_path / "x.toml")


def test_the_papers_queue_names_a_folder_for_each_data_set(tmp_path: Path) -> None:
    queue = read_study("paper").queue
    assert {out for _, out in queue} == {"cifar100", "cifar10", "cifar10-fast", "imagenette160"}
    names = [run.path for one, out in queue for run in plan_runs(one, tmp_path / out)]
    assert tmp_path / "cifar100" / "runs" / "cifar100-paper-t4-s0" in names
