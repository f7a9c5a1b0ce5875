"""README's table of accuracies, from made-up studies in a folder like results/."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import result_tables  # type: ignore[import-not-found]
from study_tables import accuracy, brief, headline  # type: ignore[import-not-found]
from transnet.report.page import facts
from transnet.study.old_results import read_folder
from transnet.study.plan import KINDS

CLEAR = {
    "base": [76.0, 76.2, 76.4], "base-x2": [77.0, 77.1, 77.3], "t2": [79.0, 79.2, 79.4], "t3": [78.0, 78.3, 78.1],
    "base-x3": [78.1, 78.0, 78.4],
}  # fmt: skip


def keep_study(
    results: Path, group: str, values: dict[str, list[float]], *, folder: str | None = None, epochs: int = 60,
    model: str = "resnet18-cifar", train_fraction: float = 1.0, commit: str | None = "abc",
    at_once: dict[str, tuple[int, ...]] | None = None,
) -> None:  # fmt: skip
    """A study's folder: accuracies in percent of pruned classifiers; all heads together reach a point more.

    On the image alone each is worse by ten points for every pass that its training took in those of base.
    """
    data, recipe = group.split("-")
    for kind, given in values.items():
        heads = len(KINDS[kind].transforms.split(","))
        for seed, value in enumerate(given):
            config = {
                "data": {"name": data, "classes": ["a", "b"], "sizes": {"train": 500, "test": 100}, "image_size": 32,
                         "channels": 3, "fingerprint": "f"},
                "train": {"data": data, "recipe": recipe, "model": model, "batch_size": 512, "lr": 0.4,
                          "schedule": "onecycle", "weight_decay": 1e-3, "label_smoothing": 0.1,
                          "epochs": epochs * KINDS[kind].epochs,
                          "train_fraction": train_fraction},
            }  # fmt: skip
            scores = [
                {"pruned": {"accuracy": (value - lower) / 100, "passes": passes},
                 "full": {"accuracy": (value - lower + 1) / 100, "passes": passes * heads}}
                for lower, passes in ((10 * KINDS[kind].cost, 1), (0, 2))
            ]  # fmt: skip
            result: dict[str, Any] = {
                "test": scores[0], "test_flip": scores[1], "config": config, "device": "a GPU", "commit": commit,
                "cost": {"train_passes": 1000 * KINDS[kind].cost, "parameters": 900 + 100 * heads},
                "train_seconds": 30.0 * KINDS[kind].cost + seed, "versions": {"torch": "2.11"}, "model_sha256": "m",
            }  # fmt: skip
            if at_once and kind in at_once:
                result["at_once"] = at_once[kind][seed]
            run = results / (folder or data) / "runs" / f"{group}-{kind}-s{seed}"
            run.mkdir(parents=True)
            (run / "result.json").write_text(json.dumps(result))


ALONE = ", the image alone\n"


def lines(text: str) -> dict[str, list[str]]:
    """The first table's rows, by their names."""
    table = text.partition(ALONE)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    return {row[0]: row[1:] for row in rows}


def test_what_the_image_alone_gives_stands_below(tmp_path: Path) -> None:
    keep_study(tmp_path, "cifar100-fast", CLEAR)
    text = accuracy(tmp_path).partition(ALONE)[2]
    found = lines(text)
    assert list(found)[2:] == ["base", "base, 2× epochs", "base, 3× epochs", "PT2", "T2", "PT3", "T3"]
    assert found["PT2"] == ["59.20 ± 0.12 (n = 3)", "−7.00 [−7.45, −6.55]", "+2.07 [+1.65, +2.48]", "1"]
    assert found["T2"][-1] == "2"
    assert "- Against base: behind PT2, T2, PT3, T3.\n" in text
    assert "T2 here against base, 2× epochs, above: −16.93 points, 95 % interval −1" in text
    assert "- Against base of equal training passes: ahead PT2, T2, T3; no difference shown for PT3.\n" in text


def test_the_headline_has_both_ways_to_test(tmp_path: Path) -> None:
    keep_study(tmp_path, "cifar100-fast", {"base": CLEAR["base"], "t2": CLEAR["t2"]})
    assert headline(tmp_path) == "What it gains is not measured yet."
    keep_study(tmp_path, "cifar10-fast", CLEAR)
    found = lines(headline(tmp_path))
    assert found["one head kept, one pass per image"] == ["−7.00 [−7.45, −6.55]", "+2.07 [+1.65, +2.48]"]
    assert found["one head kept, the image and its mirror image"] == ["+3.00 [+2.55, +3.45]", "+2.07 [+1.65, +2.48]"]
    # Two heads on the image alone, against the image and its mirror image: as many passes.
    assert found["both heads kept, two passes per image"][0] == "−6.00 [−6.45, −5.55]"
    assert found["both heads kept, two passes per image"][1].startswith("−16.93 [")
    assert "gained on CIFAR-10, with 95 % intervals (resnet18-cifar, n = 3 seeds)" in headline(tmp_path)
    assert "That rival is ahead of: both heads kept, two passes per image. More" in headline(tmp_path)


def test_the_headline_says_where_training_longer_is_ahead(tmp_path: Path) -> None:
    keep_study(tmp_path, "cifar100-fast", {**CLEAR, "base-x2": [80.0, 80.1, 80.3]})
    assert "one head kept, one pass per image; one head kept, the image and its" in headline(tmp_path)


def test_the_headline_has_the_taught_head_where_it_was_trained(tmp_path: Path) -> None:
    keep_study(tmp_path, "cifar100-fast", {**CLEAR, "t2-taught": [80.0, 80.1, 80.3]})
    found = lines(headline(tmp_path))
    assert found["one head kept, taught by both, one pass per image"][0].startswith("−6.07 [")
    assert found["one head kept, taught by both, the image and its mirror image"][0].startswith("+3.93 [")
    assert "Taught: `--distillation 1`" in headline(tmp_path)


def test_every_classifier_has_n_the_paper_s_number_and_its_price(tmp_path: Path) -> None:
    keep_study(tmp_path, "cifar100-fast", CLEAR)
    found = lines(accuracy(tmp_path))
    assert list(found)[2:] == ["base", "base, 2× epochs", "base, 3× epochs", "PT2", "T2", "PT3", "T3"]
    assert [found["PT2"][0], *found["PT2"][3:]] == ["79.20 ± 0.12 (n = 3)", "79.33 ± 0.15", "2,000", "2", "61.0 ± 0.6"]
    assert [found["T2"][0], *found["T2"][3:]] == ["80.20 ± 0.12 (n = 3)", "80.35 ± 0.06", "2,000", "4", "61.0 ± 0.6"]
    assert found["base, 2× epochs"][3] == "–"


def test_seconds_are_those_of_runs_alone_or_say_that_they_are_not(tmp_path: Path) -> None:
    keep_study(tmp_path, "cifar100-fast", CLEAR, at_once={"t2": (1, 2, 1), "t3": (2, 2, 3)})
    found = lines(accuracy(tmp_path))
    assert found["base"][-1] == "31.0 ± 0.6"
    assert found["T2"][-1] == "61.0 ± 1.0"  # 60 and 62
    assert found["T3"][-1] == "90.5 ± 0.5 (2 at once)"  # 90 and 91


def test_a_lead_inside_the_error_is_called_that(tmp_path: Path) -> None:
    keep_study(tmp_path, "cifar100-fast", {**CLEAR, "t4": [75.0, 75.1, 75.2]})
    text = accuracy(tmp_path)
    assert "Against base: ahead PT2, T2, PT3, T3; behind PT4; no difference shown for T4." in text
    assert (
        "Against base of equal training passes: ahead PT2, T2, T3; no difference shown for PT3; not measured PT4, T4."
        in text
    )
    assert lines(text)["PT3"][2] == "−0.03 [−0.46, +0.40]"


def test_one_seed_is_called_one_seed_and_claims_nothing(tmp_path: Path) -> None:
    keep_study(tmp_path, "cifar10-fast", {"base": [95.0], "t2": [99.0]}, epochs=5)
    text = accuracy(tmp_path)
    assert lines(text)["PT2"][0] == "99.00 (one seed)"
    assert lines(text)["PT2"][1] == "+4.00"
    assert "- One seed: how certain a difference is cannot be said." in text
    assert "Against base:" not in text
    assert "`transnet reproduce pruned --data cifar10 --seeds 1 --epochs 5`" in text


def test_few_seeds_and_runs_that_are_all_alike_are_called_that(tmp_path: Path) -> None:
    keep_study(tmp_path, "cifar10-fast", {"base": [95.0, 95.0], "t2": [96.0, 96.0], "t3": [96.0, 97.0, 98.0]})
    text = accuracy(tmp_path)
    assert lines(text)["PT2"][1] == "+1.00"
    assert (
        "Against base: ahead T3; no difference shown for PT3; for want of spread nothing can be said of PT2, T2."
        in text
    )
    assert "- Only two seeds of base and of PT2 and of T2: their spread is hardly known" in text
    assert "- A difference without an interval: the runs of each side are all alike, so there is no error.\n" in text
    keep_study(tmp_path, "cifar100-fast", CLEAR)
    assert accuracy(tmp_path).count("Only two seeds") == accuracy(tmp_path).count("without an interval") == 2


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    nothing = accuracy(tmp_path)
    missing = "No comparison yet, for want of runs: CIFAR-100, recipe `fast`"
    assert nothing.startswith(f"{missing}; CIFAR-100, recipe `paper`; CIFAR-10")
    keep_study(tmp_path, "cifar10-fast", CLEAR)
    keep_study(tmp_path, "cifar100-paper", CLEAR, epochs=300)
    keep_study(tmp_path, "cifar100-fast", {"base": [76.0]})  # no rival yet
    text = accuracy(tmp_path)
    assert text.index("### CIFAR-100, recipe `paper`") < text.index("### CIFAR-10, recipe `fast`")
    assert "--data cifar100 --seeds 3 --recipe paper`" in text
    assert text.endswith(f"{missing}; scikit-learn's digits, recipe `fast`.")


def test_the_command_names_what_differs_from_the_defaults(tmp_path: Path) -> None:
    keep_study(tmp_path, "cifar100-fast", CLEAR, model="timm:resnet18", train_fraction=0.1)
    again = "`transnet reproduce pruned --data cifar100 --seeds 3 --model timm:resnet18 --train-fraction 0.1`"
    assert again in accuracy(tmp_path)


def test_a_study_of_another_name_is_shown_under_it(tmp_path: Path) -> None:
    keep_study(tmp_path, "beans-fast", CLEAR)
    keep_study(tmp_path, "cifar10-fast", CLEAR)
    text = accuracy(tmp_path)
    assert text.index("### CIFAR-10, recipe `fast`\n") < text.index("### beans-fast\n")


def test_the_same_study_in_two_folders_is_shown_twice(tmp_path: Path) -> None:
    keep_study(tmp_path, "cifar10-fast", CLEAR, folder="first")
    keep_study(tmp_path, "cifar10-fast", {**CLEAR, "t2": [91.0, 91.2, 91.4]}, folder="second")
    text = accuracy(tmp_path)
    first, second = (text.index(f"### CIFAR-10, recipe `fast`, {name}\n") for name in ("first", "second"))
    assert first < text.index("79.20 ± 0.12 (n = 3)") < second < text.index("91.20 ± 0.12 (n = 3)")


def test_without_a_commit_none_is_named(tmp_path: Path) -> None:
    keep_study(tmp_path, "cifar10-fast", CLEAR)
    assert ", torch 2.11, commit abc (" in accuracy(tmp_path)
    keep_study(tmp_path, "cifar100-fast", CLEAR, commit=None)
    assert ", torch 2.11 ([results/cifar100]" in accuracy(tmp_path)
    assert "commit" not in facts(read_folder(tmp_path / "cifar100")[0])


def test_readme_has_the_first_study_s_table_and_every_study_beside_the_paper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert brief(tmp_path) == "Nothing is measured yet."
    keep_study(tmp_path, "cifar10-fast", {"base": [94.0], "t2": [95.0]})
    keep_study(tmp_path, "cifar100-fast", CLEAR)
    text = brief(tmp_path)
    assert text.startswith("CIFAR-100, recipe `fast`, tested on the image alone, as an exported network sees it:\n\n")
    found = lines(text)["PT2"]
    assert found[:2] == ["59.20 ± 0.12 (n = 3)", "−7.00 [−7.45, −6.55]"]
    assert found[2:] == ["+2.07 [+1.65, +2.48]", "1", "61.0 ± 0.6"]
    assert "- CIFAR-100, recipe `fast`, n = 3: base 76.20 ± 0.12 (76.56 ± 0.16), PT2 79.20 ± 0.12 (79.33" in text
    assert "- CIFAR-10, recipe `fast`, one seed: base 94.00 (95.57 ± 0.08), PT2 95.00 (95.99 ± 0.07), T2 96.00" in text
    monkeypatch.setattr(result_tables, "RESULTS", tmp_path)
    assert result_tables.in_brief().startswith(text)


def test_a_study_that_the_paper_does_not_have_is_judged_in_readme_too(tmp_path: Path) -> None:
    keep_study(tmp_path, "cifar100-fast", CLEAR)
    keep_study(tmp_path, "beans-fast", {"base": [90.0, 90.1, 90.2], "t2": [88.0, 88.1, 88.2]})
    last = brief(tmp_path).rpartition("\n\n")[2]
    assert last.startswith(
        "beans-fast, resnet18-cifar, tested on each image and its mirror image, outputs averaged, n = 3"
    )
    assert "base 90.10 ± 0.06, PT2 88.10 ± 0.06" in last
    assert "Against base: behind PT2, T2." in last
    keep_study(tmp_path, "peas-fast", {"base": [90.0], "t2": [88.0]})
    assert "outputs averaged, one seed: base 90.00, PT2 88.00" in brief(tmp_path)


def keep_tables(folder: Path, group: str, *keys: str) -> None:
    (folder / "tables").mkdir()
    for key in keys:
        (folder / "tables" / f"{group}-{key}.md").write_text(f"### The table {key}\n\n| a |\n")


def test_studies_say_what_was_trained_and_keep_the_paper_s_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_tables, "RESULTS", tmp_path)
    assert result_tables.studies().startswith("No study is in `results/` yet.")
    keys = ["pruned", "full", "ablation", "ensembles", "generalization", "invariance"]
    for group in ("cifar10-fast", "cifar100-fast"):
        keep_study(tmp_path, group, CLEAR)
        keep_tables(tmp_path / group.split("-")[0], group, *keys)
    text = result_tables.studies()
    of_one = ["## CIFAR-%s, recipe `fast`", *(f"### The table {key}" for key in keys)]
    headings = [line[1:] for line in text.splitlines() if line[:1] == "#"]
    assert headings == [line.replace("%s", name) for name in ("100", "10") for line in of_one]
    about = text.partition("### CIFAR-100, recipe `fast`\n\n")[2].partition("\n")[0]
    for fact in ("cifar100, 500 training", "; resnet18-cifar; fast: 60 epochs", "a GPU, torch 2.11, commit abc"):
        assert fact in about
    assert about.endswith("To repeat it: `transnet reproduce all --data cifar100 --seeds 3`.")


def demo_rows(*seeds: int) -> list[dict[str, Any]]:
    passes = {"base": 1, "base, 2× epochs": 1, "T2": 2}
    return [
        {"kind": kind, "seed": seed, "pruned": (90 + m + seed) / 100, "full": 0.95, "generalization": 2.0 + seed,
         "train_passes": 1000, "predict_passes": m}
        for kind, m in passes.items()
        for seed in seeds
    ]  # fmt: skip


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_demo_s_table_claims_no_more_than_its_seeds_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: int
) -> None:
    monkeypatch.setattr(result_tables, "RESULTS", tmp_path)
    found = {
        "rows": demo_rows(*range(seeds)), "train_images": 10, "test_images": 5, "device": "CPU", "commit": None,
        "versions": {"torch": "2.11"},
    }  # fmt: skip
    (tmp_path / "demo.json").write_text(json.dumps(found))
    text = result_tables.demo()
    assert "CPU, torch 2.11 ([" in text
    assert "PT3" not in text
    if seeds == 1:
        assert lines(text)["PT2, pruned"][:2] == ["92.00 (one seed)", "2.0 (one seed)"]
        assert text.endswith("equal training passes: PT2 +1.00 points, no interval (n = 1).")
    else:
        assert lines(text)["PT2, pruned"][:2] == ["93.00 ± 0.58", "3.0 ± 0.6"]
        assert text.endswith("PT2 +1.00 points, 95 % interval −1.27 to +3.27, no difference shown (n = 3).")


def test_equal_passes_that_were_not_trained_are_called_that() -> None:
    rows = [row for row in demo_rows(0, 1) if row["kind"] != "base, 2× epochs"]
    assert result_tables.equal_passes(rows) == "Against base of equal training passes: not measured."
