"""The tables that are published in README and docs, from made-up studies in a folder like results/."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from made_up_runs import CLEAR, write_study

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "publish"))
import benchmark_tables  # type: ignore[import-not-found]
import chosen_settings  # type: ignore[import-not-found]
import fill  # type: ignore[import-not-found]
import studies  # type: ignore[import-not-found]

ALL = {**CLEAR, "base-x3": [78.1, 78.0, 78.4], "t2-taught": [80.0, 80.1, 80.3]}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(studies, "RESULTS", tmp_path)
    monkeypatch.setattr("source.RESULTS", tmp_path)
    return tmp_path


def rows(text: str) -> dict[str, list[str]]:
    """The rows of all tables in a text by their names; the first table wins."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("|"):
            name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            found.setdefault(name, cells)
    return found


def test_pages_agree_with_results() -> None:
    assert fill.filled(fill.ROOT / "README.md") == (fill.ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", fill.TABLES)
def test_every_figure_of_a_gpu_names_its_commit(name: str) -> None:
    for part in fill.TABLES[name]().split("\n\n"):
        if "NVIDIA" in part and not part.startswith("|"):
            assert part.count("commit ") >= part.count("NVIDIA")


def test_the_first_screen_shows_cost_n_and_interval(results: Path) -> None:
    write_study(results, "cifar100-fast", ALL)
    found = rows(studies.first_screen())
    assert found["plain"] == ["1×", "1", "66.20 ± 0.12 (n = 3)", "–"]
    assert found["plain, twice as long, flip TTA"][:3] == ["2×", "2", "77.13 ± 0.09 (n = 3)"]
    # Two heads on the image alone take as many passes as the longer baseline with flip TTA.
    assert found["TransNet, both heads"][:3] == ["2×", "2", "60.20 ± 0.12 (n = 3)"]
    assert found["TransNet, both heads"][3].startswith("−16.93 [")
    assert "a GPU, torch 2.11, commit abc" in studies.first_screen()


def test_the_headline_compares_at_equal_passes(results: Path) -> None:
    write_study(results, "cifar10-fast", CLEAR)  # without self-distilled runs
    write_study(results, "cifar100-fast", ALL)
    found = rows(studies.headline())
    assert found["pruned, one pass per image"][:3] == ["−7.00 [−7.45, −6.55]", "+2.07 [+1.65, +2.48]", "ahead"]
    assert found["both heads kept, two passes per image"][1].startswith("−16.93 [")
    assert found["self-distilled and pruned, flip TTA"][0].startswith("+3.93 [")
    assert "CIFAR-100 (resnet18-cifar)" in studies.headline()


def test_every_classifier_has_n_the_papers_number_and_its_cost(results: Path) -> None:
    write_study(results, "cifar100-fast", CLEAR, at_once={"t2": (1, 2, 1), "t3": (2, 2, 3)})
    text = studies.overview()
    found = rows(text)
    assert found["PT2"] == ["79.20 ± 0.12 (n = 3)", "+3.00 [+2.55, +3.45]", "+2.07 [+1.65, +2.48]", "79.33 ± 0.15",
                            "2,000", "2", "61.0 ± 1.0"]  # fmt: skip
    assert found["T2"][-2:] == ["4", "61.0 ± 1.0"]  # 60 and 62 seconds: the runs that had the device alone
    assert found["T3"][-1] == "90.5 ± 0.5 (2 at once)"
    assert found["baseline, 2× epochs"][3] == "–"
    alone = rows(text.partition("the image alone")[2])
    assert alone["PT2"] == ["59.20 ± 0.12 (n = 3)", "−7.00 [−7.45, −6.55]", "+2.07 [+1.65, +2.48]", "1"]


def test_one_seed_has_no_interval(results: Path) -> None:
    write_study(results, "cifar10-fast", {"base": [95.0], "t2": [99.0]}, epochs=5)
    text = studies.overview()
    assert rows(text)["PT2"][:2] == ["99.00 (one seed)", "+4.00"]
    assert "`transnet reproduce pruned --data cifar10 --seeds 1 --epochs 5`" in text


def test_the_command_names_settings_that_differ_from_the_defaults(results: Path) -> None:
    write_study(results, "cifar100-paper", CLEAR, epochs=300, model="timm:resnet18", train_fraction=0.1)
    command = "--data cifar100 --seeds 3 --recipe paper --train-fraction 0.1 --model timm:resnet18`"
    assert command in studies.overview()


def test_studies_come_in_order_and_under_their_folders_names(results: Path) -> None:
    write_study(results, "beans-fast", CLEAR)
    write_study(results, "cifar10-fast", CLEAR, folder="first")
    write_study(results, "cifar10-fast", {**CLEAR, "t2": [91.0, 91.2, 91.4]}, folder="second")
    headings = [line for line in studies.overview().splitlines() if line.startswith("### ")]
    assert headings == [f"### {name}" for name in ("CIFAR-10, recipe `fast`, first", "CIFAR-10, recipe `fast`, second",
                                                   "beans-fast")]  # fmt: skip


def test_readme_has_every_study_beside_the_paper(results: Path) -> None:
    write_study(results, "cifar100-fast", ALL)
    write_study(results, "cifar10-fast", {"base": [94.0], "t2": [95.0]})
    found = rows(studies.brief())
    assert found["PT2"] == ["2×", "1", "59.20 ± 0.12 (n = 3)", "−7.00 [−7.45, −6.55]", "+2.07 [+1.65, +2.48]"]
    assert found["CIFAR-100, recipe `fast`, n = 3"][1] == "79.20 ± 0.12 (79.33 ± 0.15)"
    assert found["CIFAR-10, recipe `fast`, one seed"][:3] == ["94.00 (95.57 ± 0.08)", "95.00 (95.99 ± 0.07)",
                                                             "96.00 (96.22 ± 0.10)"]  # fmt: skip


def test_details_have_the_tables_of_the_report(results: Path) -> None:
    for name in ("cifar10-fast", "cifar100-fast"):
        write_study(results, name, CLEAR)
        folder = results / name.split("-")[0] / "tables"
        folder.mkdir()
        for key in ("full", "pruned"):
            (folder / f"{name}-{key}.md").write_text(f"### The table {key}\n\n| a |\n")
    headings = [line for line in studies.details().splitlines() if line.startswith("#")]
    of_one = ["#### The table pruned", "#### The table full"]
    assert headings == ["### CIFAR-100, recipe `fast`", *of_one, "### CIFAR-10, recipe `fast`", *of_one]


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_demos_table_has_intervals_if_there_are_seeds(monkeypatch: pytest.MonkeyPatch, seeds: int) -> None:
    found: dict[str, Any] = {
        "rows": [
            {"kind": kind, "seed": seed, "pruned": (90 + m + seed) / 100, "full": 0.95, "generalization": 2.0 + seed,
             "train_passes": 1000, "predict_passes": m}
            for kind, m in {"base": 1, "base, 2× epochs": 1, "T2": 2}.items()
            for seed in range(seeds)
        ],
        "train_images": 10, "test_images": 5, "device": "CPU", "commit": None, "versions": {"torch": "2.11"},
    }  # fmt: skip
    monkeypatch.setattr(benchmark_tables, "read", lambda name: json.loads(json.dumps(found)))
    table = rows(benchmark_tables.demo())
    if seeds == 1:
        assert table["PT2, pruned"][:3] == ["92.00", "+1.00", "2.0"]
        assert "one seed" in benchmark_tables.demo()
    else:
        assert table["PT2, pruned"][:3] == ["93.00 ± 0.58", "+1.00 [−1.27, +3.27]", "3.0 ± 0.6"]


def test_candidates_are_named_as_options() -> None:
    assert chosen_settings.option("r0,m3 taught 1 bn-separate") == "`r0,m3 --distillation 1 --bn separate`"
    assert chosen_settings.option("base-long") == "baseline"
