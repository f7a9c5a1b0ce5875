"""What `transnet train` and `transnet evaluate` print: tables of scores, and notes about a collapsed classifier."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from data_files import encoded, noise
from small_runs import images_file, run
from transnet.cli import main as transnet
from transnet.cli.scores import print_classes, print_scores
from transnet.runs.folder import Run
from transnet.runs.records import Scores
from transnet.train.evaluate import ClassScore, class_scores, ensemble_scores, scores_of_logits

QUICK = ("--model", "resnet8-small", "--device", "cpu", "--no-tensorboard")


def words(text: str) -> str:
    return " ".join(text.split())


def photographs(root: Path, counts: dict[str, int]) -> Path:
    """Noise, so that nothing but the class counts can be learned."""
    for c, (name, n) in enumerate(counts.items()):
        (root / name).mkdir(parents=True)
        for i in range(n):
            (root / name / f"{i}.png").write_bytes(encoded(noise(1000 * c + i)))
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photographs(tmp_path_factory.mktemp("collapse") / "photos", {"common": 90, "rare": 6})


def table(out: str) -> list[list[str]]:
    """The rows of the table of recalls."""
    start = out.index("recall per class")
    lines = out[start : out.index("class counts", start)].splitlines()
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]


@pytest.mark.parametrize("transforms", ["r0,r1", "r0", "r1,r2"])
def test_train_and_evaluate_note_a_class_that_is_never_predicted(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], transforms: str
) -> None:
    out = tmp_path / "run"
    options = (*QUICK, "--epochs", "2", "--transforms", transforms, "--val-fraction", "0.2", "--out", str(out))
    assert transnet(["train", str(folder), *options]) == 0
    printed = capsys.readouterr()
    text = words(printed.out)
    result = json.loads((out / "result.json").read_text())
    test, val = classes_of(result["test"]), classes_of(result["val"])
    common, rare = test
    assert (common["n_train"] + val[0]["n"] + common["n"], common["recall"]) == (90, 1)
    assert (rare["n_train"] + val[1]["n"] + rare["n"], rare["recall"]) == (6, 0)
    assert rare["n"] > 0
    counts = [["rare", f"{rare['n_train']}", f"{rare['n']}", "0.0"]]
    counts += [["common", f"{common['n_train']}", f"{common['n']}", "100.0"]]
    assert table(printed.out) == counts
    entry = result["test"]["pruned"] or result["test"]["full"]
    assert entry["accuracy"] > 0.9
    assert entry["balanced_accuracy"] == 0.5
    title = {"r0,r1": "the pruned classifier", "r0": "the network", "r1,r2": "the full model"}[transforms]
    assert f"class counts: 2 classes with {rare['n_train']} to {common['n_train']} training and" in text
    assert text.count(f"balanced accuracy of {title}: 50.00 %, the mean recall of 2 classes") == 2  # test, validation
    assert "note: the training set is imbalanced" in text
    assert "note: the training set is imbalanced" in printed.err  # also before the training
    for split in ("test", "validation"):
        assert f"note: {title} has a recall of 0 for 1 of 2 classes of the {split} split (rare)" in text
    both = "note: the full model has a recall of 0 for 1 of 2 classes of the test split;" in text
    assert both == (transforms == "r0,r1")

    assert transnet(["evaluate", str(out)]) == 0
    printed = capsys.readouterr()
    assert table(printed.out) == [[*counts[0], "common", f"{rare['n']}"], [*counts[1], "", ""]]
    assert f"note: {title} has a recall of 0 for 1 of 2 classes of the test split (rare)" in words(printed.out)
    assert "note: the training set is imbalanced" in words(printed.out)

    assert transnet(["evaluate", str(out), "--json", "--split", "val"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)[str(out)]
    assert [entry["n_train"] for entry in found["classes"]] == [common["n_train"], rare["n_train"]]
    assert [entry["recall"] for entry in found["classes"]] == [1, 0]
    assert f"{title} has a recall of 0 for 1 of 2 classes of the validation split (rare)" in words(printed.err)


def test_balanced_classes_that_are_learned_get_no_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = images_file(tmp_path / "x.npz")
    options = (*QUICK, "--epochs", "6", "--batch-size", "32", "--lr", "0.05", "--out", str(tmp_path / "run"))
    assert transnet(["train", str(data), *options]) == 0
    assert transnet(["evaluate", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("class counts: 3 classes with 50 training and 13 to 14 test images each") == 2
    assert "note" not in printed.out
    assert "imbalanced" not in printed.err


def test_an_ensemble_has_the_recall_of_its_mean(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(tmp_path / f"run{seed}") for seed in (0, 1)]
    for seed, out in enumerate(runs):
        run(folder, Path(out), seed=seed, epochs=1, transforms="r0,r1")
    assert transnet(["evaluate", *runs]) == 0
    text = words(capsys.readouterr().out)
    for kind in ("pruned classifier", "full model"):
        assert f"note: the ensemble of {kind}s has a recall of 0 for 1 of 2 classes of the test split" in text
    assert transnet(["evaluate", *runs, "--json"]) == 0
    ensemble = json.loads(capsys.readouterr().out)["ensemble"]
    assert [entry["recall"] for entry in ensemble["classes"]] == [1, 0]
    assert ensemble["plain"]["pruned"]["balanced_accuracy"] == 0.5


def test_classes_without_test_images_are_left_out_of_the_mean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 1), dtype=np.uint8)
    y = np.arange(60) % 5
    for label in range(5):
        x[y == label, label] = 255
    test = np.isin(y, (0, 2, 3))
    np.savez(tmp_path / "x.npz", x_train=x, y_train=y, x_test=x[test], y_test=y[test])
    result = run(tmp_path / "x.npz", tmp_path / "run", epochs=4, transforms="r0")
    recalls = [entry["recall"] for entry in classes_of(result["test"])]
    assert [entry["n"] for entry in classes_of(result["test"])] == [12, 0, 12, 12, 0]
    assert [recall is None for recall in recalls] == [False, True, False, False, True]
    mean = sum(recall for recall in recalls if recall is not None) / 3
    assert result["test"]["pruned"]["balanced_accuracy"] == pytest.approx(mean)
    assert transnet(["evaluate", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    assert f"{100 * mean:.2f} %, the mean recall of the 3 of 5 classes that have images in the test split" in words(
        printed
    )
    assert {row[0] for row in table(printed)} == {"0", "2", "3"}


def classes_of(scores: dict[str, Any]) -> list[dict[str, Any]]:
    """The classes in a part of ``result.json``."""
    return (scores["pruned"] or scores["full"])["classes"]


def entries(recalls: list[float], n: int = 20) -> tuple[Scores, tuple[ClassScore, ...]]:
    """Scores of one head with that recall of each class."""
    k = len(recalls)
    y = torch.arange(k).repeat_interleave(n)
    right = torch.cat([torch.arange(n) < round(recall * n) for recall in recalls])
    logits = F.one_hot(torch.where(right, y, (y + 1) % k), k).float()
    names = [f"kind {i}" for i in range(k)]
    return scores_of_logits(logits[:, None], y, ("r0",)), class_scores(logits, y, names, [500] * k)


def test_only_the_ten_lowest_recalls_are_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    recalls = [0.05 * (i % 20 + 1) for i in range(100)]
    print_classes(*entries(recalls), "test")
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert [row[3] for row in table(out)] == ["5.0"] * 5 + ["10.0"] * 5
    assert table(out)[0] == ["kind 0", "500", "20", "5.0", "kind 1", "19"]
    assert "recall per class, 10 lowest of 100" in out
    assert "class counts: 100 classes with 500 training and 20 test images each" in out
    assert "52.50 %, the mean recall of 100 classes" in words(out)
    assert "note" not in out


def test_only_ten_classes_with_a_recall_of_0_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    print_classes(*entries([0.0] * 30 + [1.0] * 70), "test")
    out = capsys.readouterr().out
    assert "has a recall of 0 for 30 of 100 classes of the test split (kind 0, kind 1," in out
    assert "kind 9 and " in out


def test_control_characters_in_class_names_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    view, classes = entries([0.0, 1.0])
    print_classes(view, (replace(classes[0], name="\x1b[31m[red]x", n_train=1), *classes[1:]), "test")
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.count("[red]x") == 3  # table and both notes


def scored(names: tuple[str, ...], *, n: int = 60, passes: int = 1, seed: int = 0) -> Scores:
    logits = torch.randn(n, len(names), 3, generator=torch.Generator().manual_seed(seed))
    return scores_of_logits(logits, torch.arange(n) % 3, names, passes=passes)


def test_scores_with_flip_tta_are_two_tables_that_fit_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = ("r0", "r1", "r2", "r3")
    alone, both = scored(names), scored(names, passes=2, seed=1)
    print_scores(alone, both)
    text = capsys.readouterr().out
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    for column in ("passes", "balanced", "loss", "calibration", "head 3: r3"):
        assert text.count(column) == 2
    assert text.index("without flip TTA") < text.index("with flip TTA")
    found = both.full.uncertainty
    assert (
        f"The heads with flip TTA do not all choose the same class on {100 * found.split_votes:.1f} % of the images, "
        f"and their probabilities differ by {found.disagreement:.4f} nats (0: they agree); this separates errors from "
        f"correct predictions with an AUROC of {found.error_auroc:.3f} (0.5: chance, 1: perfect)." in words(text)
    )
    print_scores(alone, None)
    assert "flip TTA" not in capsys.readouterr().out  # one table needs no name


def first_column(text: str) -> list[str]:
    return [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]


def test_each_classifier_is_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    for names, rows in (
        (("r0", "r1"), ["pruned (head 0: r0)", "full", "head 1: r1"]),
        (("r1", "r0", "r0"), ["pruned (head 1: r0)", "full", "head 0: r1", "head 2: r0"]),
        (("r1", "r2"), ["full", "head 0: r1", "head 1: r2"]),
        (("r0",), ["the one head: r0"]),
        (("r1",), ["the one head: r1"]),
    ):
        print_scores(scored(names), None)
        assert first_column(capsys.readouterr().out) == rows


def test_disagreement_is_printed_for_heads_and_for_runs(capsys: pytest.CaptureFixture[str]) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, y = torch.randn(60, 2, 3, generator=generator), torch.arange(60) % 3
    print_scores(scores_of_logits(logits, y, ("r0", "r1")), None)
    text = words(capsys.readouterr().out)
    assert re.search(r"The heads do not all choose the same class on \d+\.\d % of the images, and their", text)
    runs = ensemble_scores([logits, logits.flip(1)], y, [("r0", "r1")] * 2)
    print_scores(runs, None)
    out = capsys.readouterr().out
    assert first_column(out) == ["pruned", "full"]
    text = words(out)
    assert "The runs' pruned classifiers do not all choose" in text
    assert "The runs' full models do not all choose the same class on 0.0 % of the images" in text


def test_an_ensemble_of_single_heads_is_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    logits, y = torch.randn(60, 2, 3, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
    runs = ensemble_scores([logits[:, :1], logits[:, 1:]], y, [("r0",)] * 2)
    print_scores(runs, None)
    text = capsys.readouterr().out
    assert first_column(text) == ["pruned and full"]
    assert "The runs do not all choose" in text


def test_published_results_without_balanced_accuracy_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    runs = Path(__file__).parents[1] / "results" / "digits" / "runs"
    print_scores(Run(runs / "digits-fast-t2-s1").result().test, None)
    assert "passes" in (out := capsys.readouterr().out)
    assert "balanced" not in out
