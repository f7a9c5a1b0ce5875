"""The tables in README and docs, from made-up studies in a folder like results/."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from made_up_runs import CLEAR, write_study

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "publish"))
import benchmark_tables  # type: ignore[import-not-found]
import chosen_settings  # type: ignore[import-not-found]
import comparisons  # type: ignore[import-not-found]
import fill  # type: ignore[import-not-found]
import reproduction  # type: ignore[import-not-found]
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
def test_every_gpu_figure_names_its_commit(name: str) -> None:
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


def test_the_image_alone_has_every_classifier_beside_those_of_equal_cost(results: Path) -> None:
    write_study(results, "cifar10-fast", CLEAR)  # without self-distilled runs
    write_study(results, "cifar100-fast", ALL)
    found = rows(studies.image_alone())
    assert list(found)[2:] == ["baseline", "PT2", "baseline, 2× epochs", "PT2 self-distilled", "T2",
                               "T2 self-distilled", "PT3", "baseline, 3× epochs", "T3"]  # fmt: skip
    assert found["PT2"] == ["2×", "1", "59.20 ± 0.12 (n = 3)", "−7.00 [−7.45, −6.55]", "+2.07 [+1.65, +2.48]"]
    assert found["T2"][1] == "2"
    assert "CIFAR-100, recipe `fast`" in studies.image_alone()


def test_every_study_is_beside_the_paper(results: Path) -> None:
    write_study(results, "beans-fast", CLEAR)
    write_study(results, "cifar100-fast", ALL)
    write_study(results, "cifar10-fast", {"base": [94.0], "t2": [95.0]})
    found = rows(studies.beside_paper())
    assert found["model"] == [
        "CIFAR-100, recipe `fast`, n = 3",
        "CIFAR-10, recipe `fast`, one seed",
        "beans-fast, n = 3",
    ]
    assert found["PT2"] == ["79.20 ± 0.12 (79.33 ± 0.15)", "95.00 (95.99 ± 0.07)", "79.20 ± 0.12"]
    assert found["T2"][1] == "96.00 (96.22 ± 0.10)"
    assert found["PT3"][1:] == ["–", "78.13 ± 0.09"]


def test_the_command_repeats_the_study(results: Path) -> None:
    write_study(results, "cifar100-paper", CLEAR, epochs=300, model="timm:resnet18", train_fraction=0.1)
    command = "all --data cifar100 --recipe paper --model timm:resnet18 --epochs 300 --seeds 3 --train-fraction 0.1`"
    assert f"`transnet reproduce {command}" in studies.details()


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
def test_the_demos_table_has_intervals_if_there_are_seeds(results: Path, seeds: int) -> None:
    found: dict[str, Any] = {
        "rows": [
            {"kind": kind, "seed": seed, "pruned": (90 + m + seed) / 100, "full": 0.95, "generalization": 2.0 + seed,
             "train_passes": 1000, "predict_passes": m}
            for kind, m in {"base": 1, "base, 2× epochs": 1, "T2": 2}.items()
            for seed in range(seeds)
        ],
        "train_images": 10, "test_images": 5, "device": "CPU", "commit": None, "versions": {"torch": "2.11"},
    }  # fmt: skip
    (results / "demo.json").write_text(json.dumps(found))
    table = rows(benchmark_tables.demo())
    if seeds == 1:
        assert table["PT2, pruned"][:3] == ["92.00", "+1.00", "2.0"]
        assert "one seed" in benchmark_tables.demo()
    else:
        assert table["PT2, pruned"][:3] == ["93.00 ± 0.58", "+1.00 [−1.27, +3.27]", "3.0 ± 0.6"]


def test_candidates_are_named_as_options() -> None:
    assert chosen_settings.option("r0,m3 taught 1 bn-separate") == "`r0,m3 --distillation 1 --bn separate`"
    assert chosen_settings.option("base-long") == "baseline"


# ------------------------------------------------------------------------------------------------- the paper's status


def parts(results: Path, name: str, values: dict[str, list[float]]) -> dict[str, tuple[str, str]]:
    """Status and reason of Table 2's rows, from made-up runs of one series."""
    write_study(results, name, values)
    found = {study.series.name: study for study in studies.studies()}
    checks = {kind: comparisons.table_row(kind, "pruned", "cifar100") for kind in ("t2", "t3")}
    judged = {kind: reproduction.judge(kind, "", check, "cifar100", found) for kind, check in checks.items()}
    return {kind: (part.status, part.why) for kind, part in judged.items()}


GAINS = {"base": [76.0, 76.2, 76.4], "t2": [78.8, 79.0, 79.2], "t3": [76.0, 76.1, 76.2]}  # the paper: +2.77 and +2.52


def test_a_row_reproduces_within_two_combined_standard_errors(results: Path) -> None:
    found = parts(results, "cifar100-paper", GAINS)
    assert found["t2"] == ("reproduced", "recipe `paper`, n = 3")
    assert found["t3"][0] == "not reproduced"


def test_recipe_fast_gives_another_status(results: Path) -> None:
    found = parts(results, "cifar100-fast", GAINS)
    assert found["t2"][0] == "reproduced with another recipe"
    assert found["t3"][0] == "not reproduced"


def test_two_seeds_are_not_run_with_a_note(results: Path) -> None:
    found = parts(results, "cifar100-paper", {kind: values[:2] for kind, values in GAINS.items()})
    assert found["t2"][0] == "not run"
    assert "n = 2: +2.80" in found["t2"][1]


def test_the_papers_recipe_decides_before_recipe_fast(results: Path) -> None:
    write_study(results, "cifar100-fast", {**GAINS, "t2": [76.0, 76.1, 76.2]})
    found = parts(results, "cifar100-paper", GAINS)
    assert found["t2"][0] == "reproduced"
    assert "recipe `fast`, n = 3: −0.10 ± 0.13, which disagrees" in found["t2"][1]


def test_an_item_has_the_status_of_its_weakest_part() -> None:
    def part(status: str) -> Any:
        return reproduction.Part("a row", "", status, "", "")

    for statuses, weakest in (
        (["reproduced", "not run"], "not run"),
        (["not run", "not reproduced"], "not reproduced"),
    ):
        assert reproduction.item("x", [part(status) for status in statuses], 0, "").status == weakest


def test_every_item_of_the_paper_has_a_status() -> None:
    found = {one.id: one for one in reproduction.items()}
    tables = {f"table{i}-{data}" for i in (2, 3, 4) for data in reproduction.FIVE}
    assert tables | {f"fig3-{data}" for data in reproduction.FIVE} | {"fig4", "fig5", "fig6"} < set(found)
    assert len(found) == 36
    for one in found.values():
        assert one.status in reproduction.STATUSES
        assert one.command
        assert one.minutes or one.status != "not run"
    assert found["table2-imagenette"].status == "not run"


def test_another_network_is_in_no_table_of_the_papers_network(results: Path) -> None:
    write_study(results, "cifar10-fast", CLEAR)
    write_study(results, "cifar10-fast", {"base": [60.0, 61.0, 62.0]}, folder="cifar10-resnet8", model="resnet8-small")
    table = studies.beside_paper().splitlines()[0]
    assert table.count("CIFAR-10") == 1
    assert "resnet8" not in table
    assert "### CIFAR-10, recipe `fast`, resnet8-small" in studies.details()
    assert reproduction.by_series()["cifar10-fast"].folder.name == "cifar10"


def test_shorter_training_does_not_count_as_the_recipe(results: Path) -> None:
    write_study(results, "cifar100-fast", CLEAR, epochs=30)
    assert not reproduction.by_series()
    write_study(results, "cifar10-fast", CLEAR)
    assert list(reproduction.by_series()) == ["cifar10-fast"]
