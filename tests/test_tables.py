"""The tables: errors, intervals, prices and what may be bold, on runs whose accuracies are given."""

import csv
import io
import math
import re
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from transnet.report.page import findings
from transnet.report.paper import DATA, published
from transnet.report.tables import rows_of, table
from transnet.study.old_results import FinishedRun, Group
from transnet.study.plan import KINDS
from transnet.study.statistics import as_text, difference


def run(kind: str, seed: int, accuracy: float, *, data: str = "cifar100", flip: bool = True) -> FinishedRun:
    heads = len(KINDS[kind].transforms.split(","))

    def view(passes: int, percent: float) -> dict[str, Any]:
        entry = {"accuracy": percent / 100, "loss": 1.0, "n": 100}
        return {"pruned": {**entry, "passes": passes}, "full": {**entry, "passes": heads * passes}, "heads": []}

    cost = {"train_passes": 1000 * KINDS[kind].cost, "predict_passes": heads, "parameters": 900 + 100 * heads}
    config = {"train": {"model": "m", "recipe": "fast"}, "data": {"name": data}}
    # Without flip everything is ten points lower, so that a table by the wrong protocol shows.
    result = {
        "test": view(1, accuracy - 10 if flip else accuracy), "test_flip": view(2, accuracy) if flip else None,
        "cost": cost, "config": config, "generalization": 2.0, "train_seconds": 10.0 * KINDS[kind].cost,
    }  # fmt: skip
    return FinishedRun(f"{data}-fast-{kind}-s{seed}", kind, seed, Path(), result, [])


def group(values: dict[str, list[float]], **how: Any) -> Group:
    runs = {kind: [run(kind, i, value, **how) for i, value in enumerate(given)] for kind, given in values.items()}
    return Group("cifar100-fast", runs=runs)


CLEAR = {
    "base": [76.0, 76.2, 76.4], "t2": [79.0, 79.2, 79.4], "t3": [78.0, 78.3, 78.1], "base-x2": [77.0, 77.1, 77.3],
}  # fmt: skip


def test_mean_error_and_price() -> None:
    base, pt2, _, longer = rows_of(group(CLEAR), "pruned")
    assert pt2.mean == pytest.approx(79.2)
    assert pt2.error == pytest.approx(0.2 / math.sqrt(3))
    assert [row.train_passes for row in (base, pt2, longer)] == [1000, 2000, 2000]
    assert [row.predict_passes for row in (base, pt2, longer)] == [2, 2, 2]
    assert [row.parameters for row in (base, pt2, longer)] == [1000, 1000, 1000]
    full = rows_of(group(CLEAR), "full")[1]
    assert (full.name, full.predict_passes, full.parameters) == ("T2", 4, 1100)


def test_differences_are_to_base_and_to_the_base_of_equal_passes() -> None:
    pt2 = rows_of(group(CLEAR), "pruned")[1]
    assert pt2.to_base is not None
    assert pt2.to_equal is not None
    assert pt2.to_base.mean == pytest.approx(3.0)
    assert pt2.to_equal.mean == pytest.approx(79.2 - 77.1333, abs=1e-3)
    assert pt2.to_base.certain


def test_welch_by_hand() -> None:
    ours, others = [79.0, 79.2, 79.7], [76.0, 76.8, 76.4, 77.0]
    a, b = (stats.sem(values) ** 2 for values in (ours, others))
    degrees = (a + b) ** 2 / (a**2 / 2 + b**2 / 3)
    half = stats.t.ppf(0.975, degrees) * math.sqrt(a + b)
    found = difference(ours, others)
    assert (found.low, found.high) == pytest.approx((found.mean - half, found.mean + half))


def test_only_a_lead_outside_the_error_is_bold() -> None:
    assert [row.leads for row in rows_of(group(CLEAR), "pruned")] == [False, True, False, False]
    close = {**CLEAR, "t3": [79.0, 79.3, 79.0]}
    assert not any(row.leads for row in rows_of(group(close), "pruned"))
    assert "**" not in table(group(close), "pruned").markdown()  # type: ignore[union-attr]


def test_one_seed_is_called_one_seed() -> None:
    sheet = table(group({"base": [76.0], "t2": [99.0]}), "pruned")
    assert sheet is not None
    text = sheet.markdown()
    assert "One seed" in text
    assert "1 (one seed)" in text
    assert "**" not in text
    assert "[" not in text


def test_a_difference_in_words_claims_no_more_than_there_is() -> None:
    clear = str(difference([79.0, 79.2, 79.4], [76.0, 76.2]))
    assert clear.startswith("+3.10 points, 95 % interval +2.")
    assert clear.endswith("(n = 3 and 2)")
    assert str(difference([79.0, 79.2, 79.4], [79.3, 79.0, 79.2])).endswith("no difference shown (n = 3)")
    assert str(difference([79.0], [76.0])) == "+3.00 points, no interval (n = 1)"


def test_values_without_spread_claim_nothing() -> None:
    assert not difference([80.0, 80.0], [70.0, 70.0]).certain


def test_every_run_counts_though_ensembles_needed_more_of_some_kinds() -> None:
    base, pt2 = rows_of(group({"base": [76.0, 76.2, 76.4, 76.6], "t2": [79.0, 79.1]}), "pruned")
    assert (len(base.values), len(pt2.values)) == (4, 2)
    assert pt2.to_base is not None
    assert pt2.to_base.n == (2, 4)
    assert pt2.to_base.mean == pytest.approx(79.05 - 76.3)


def test_the_paper_stands_beside_ours() -> None:
    pt2 = rows_of(group(CLEAR), "pruned")[1]
    assert pt2.paper == (79.33, 0.15)
    assert pt2.to_paper == pytest.approx((79.2 - 79.33, math.hypot(0.15, 0.2 / math.sqrt(3))))
    assert "79.33 ± 0.15" in table(group(CLEAR), "pruned").markdown()  # type: ignore[union-attr]


def test_the_paper_s_numbers_are_all_there() -> None:
    rows = ("base", "PT2", "PT3", "PT4", "T2", "T3", "T4", "Alg. only", "Arch. only")
    assert all(published(row, data) for row in rows for data in DATA)
    assert published("T3", "imagewoof") == (88.79, 0.25)
    assert published("Alg. only", "imagenet200") == (80.58, 0.08)
    assert published("PT2", "digits") is None
    assert published("base, 2× epochs", "cifar10") is None


def test_without_flip_the_plain_test_counts_and_the_table_says_so() -> None:
    sheet = table(group(CLEAR, data="digits", flip=False), "pruned")
    assert sheet is not None
    assert rows_of(group(CLEAR, data="digits", flip=False), "pruned")[1].predict_passes == 1
    assert "plain image" in sheet.markdown()
    assert not any("paper" in column for column in sheet.columns)


def test_csv_keeps_numbers_unrounded_and_every_run() -> None:
    sheet = table(group(CLEAR), "pruned")
    assert sheet is not None
    lines = list(csv.DictReader(io.StringIO(sheet.comma_separated())))
    assert [line["model"] for line in lines] == ["base", "PT2", "PT3", "base, 2× epochs"]
    assert float(lines[1]["accuracy %: standard error"]) == pytest.approx(0.2 / math.sqrt(3), abs=1e-12)
    assert [float(lines[1][f"accuracy %: run {i}"]) for i in (1, 2, 3)] == pytest.approx([79.0, 79.2, 79.4])
    assert float(lines[1]["to base: low"]) > 0


def test_people_read_a_minus_sign_and_programs_a_hyphen() -> None:
    sheet = table(group({**CLEAR, "t3": [75.0, 75.2, 75.1]}), "pruned")
    assert sheet is not None
    assert "| PT3 | 75.10 ± 0.06 | 3 | −1.10 [" in sheet.markdown()
    assert "| −3.98 ± 0.08 |" in sheet.markdown()  # ours − paper
    assert not re.search(r"(?<!\w)-\d", sheet.markdown())
    lines = list(csv.DictReader(io.StringIO(sheet.comma_separated())))
    assert float(lines[2]["to base"]) == pytest.approx(-1.1)
    assert sheet.rows[2][3].value == pytest.approx(-1.1)  # what a click sorts by


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [(-0.004, "+.2f", "+0.00"), (-0.0, ".1f", "0.0"), (-0.04, ".1f", "0.0"), (-0.006, "+.2f", "−0.01")],
)
def test_what_rounds_to_zero_is_no_loss(value: float, form: str, text: str) -> None:
    assert as_text(value, form) == text


def test_the_table_warns_of_two_seeds_and_of_runs_that_are_all_alike() -> None:
    def notes(values: dict[str, list[float]]) -> tuple[str, ...]:
        sheet = table(group(values), "pruned")
        assert sheet is not None
        return sheet.notes

    alike = "A difference without an interval: the runs of each side are all alike, so there is no error."
    assert [note for note in notes({"base": [76.0, 76.2], "t2": [79.0, 79.2]}) if note.startswith("Two seeds: the spr")]
    assert [note for note in notes({**CLEAR, "t2": [79.0, 79.2]}) if note.startswith("Only two seeds of PT2: their sp")]
    assert alike in notes({"base": [76.0, 76.0], "t2": [79.0, 79.0]})
    for values in (CLEAR, {"base": [76.0], "t2": [79.0]}):
        assert not [note for note in notes(values) if note == alike or "wo seeds" in note]
    assert "no interval: the runs of each side are all alike (n = 2)" in str(difference([2.0, 2.0], [1.0, 1.0]))


def test_every_number_of_heads_is_judged_at_the_head_of_the_report() -> None:
    def said(values: dict[str, list[float]]) -> list[str]:
        return [finding.replace("\u00a0", " ") for finding in findings(group(values))]

    values = {**CLEAR, "t4": [75.0, 75.1, 75.2], "base-x3": [78.1, 78.4]}
    assert said(values)[2].startswith("Points against the base, on the image alone: ahead PT2 +3.00, PT3 +1.93, T2")
    assert [finding for i, finding in enumerate(said(values)) if i not in (2, 3)] == [
        "Points against the base, with the mirror image as in the paper: "
        "ahead PT2 +3.00, PT3 +1.93, T2 +3.00, T3 +1.93; behind PT4 −1.10, T4 −1.10.",
        "Against the base of equal training passes, with the mirror image as in the paper: ahead PT2 +2.07, T2 +2.07; "
        "no difference shown for PT3 −0.12, T3 −0.12; not measured PT4, T4.",
        "n = 2 or 3; ahead or behind is what has a 95 % interval without zero in it. "
        "The intervals stand in the tables.",
    ]
    assert said({"base": [76.0], "t2": [79.0]})[0] == (
        "Points against the base, with the mirror image as in the paper: too few seeds to judge PT2 +3.00, T2 +3.00."
    )
    assert said({"base": [76.0], "t2": [79.0]})[-1] == "One seed: no intervals."
    assert said({"base": [76.0]}) == []


def test_what_one_pass_of_the_image_alone_gives_has_its_own_table() -> None:
    found = group(CLEAR)
    for kind in ("t2", "base-x2"):  # without the mirror image the order is the other way round
        for run in found.runs[kind]:
            for part in ("pruned", "full"):
                run.result["test"][part]["accuracy"] += 0.05 if kind == "base-x2" else 0
    rows = {row.name: row for row in rows_of(found, "unmirrored")}
    assert list(rows) == ["base", "PT2", "PT3", "T2", "T3", "base, 2× epochs"]
    assert [rows[name].predict_passes for name in rows] == [1, 1, 1, 2, 3, 1]
    assert rows["PT2"].mean == pytest.approx(69.2)
    assert rows["PT2"].to_equal is not None
    assert rows["PT2"].to_equal.mean == pytest.approx(69.2 - 72.1333, abs=1e-3)
    sheet = table(found, "unmirrored")
    assert sheet is not None
    assert not any("paper" in column for column in sheet.columns)
    assert "Tested on the image alone" in sheet.markdown()
    assert table(group(CLEAR, data="digits", flip=False), "unmirrored") is None  # Tables 2 and 3 are that already


def test_the_ablation_says_what_the_paper_concluded_and_whether_it_is_so() -> None:
    sheet = table(group({**CLEAR, "alg": [77.9, 78.0, 78.2], "arch": [76.1, 76.3, 76.3]}), "ablation")
    assert sheet is not None
    assert "Here, against base: ahead Alg. only; no difference shown for Arch. only." in sheet.notes[-2]
    assert sheet.notes[-1].endswith("PT2 against Alg. only: +1.17 points, 95 % interval +0.75 to +1.58 (n = 3).")


def test_teaching_is_judged_on_the_image_alone_beside_what_it_changes() -> None:
    assert table(group(CLEAR), "taught") is None
    found = group({**CLEAR, "t2-taught": [80.9, 81.0, 81.2]})
    rows = {row.name: row for row in rows_of(found, "taught")}
    assert list(rows) == ["base", "PT2", "PT2 taught", "T2", "T2 taught", "base, 2× epochs"]
    assert [row.predict_passes for row in rows.values()] == [1, 1, 1, 2, 2, 1]
    assert rows["PT2 taught"].to_equal is not None
    sheet = table(found, "taught")
    assert sheet is not None
    assert "Tested on the image alone, as an exported network sees it." in sheet.notes
    assert any(note.startswith("PT2 taught against PT2: +1.8") for note in sheet.notes)
    plain = table(group({**CLEAR, "t2-taught": [80.9, 81.0, 81.2]}, data="digits", flip=False), "taught")
    assert plain is not None
    assert any(note.startswith("Tested on the plain image") for note in plain.notes)


def test_no_table_without_base_or_without_a_rival() -> None:
    assert table(group({"t2": [79.0]}), "pruned") is None
    assert table(group({"base": [79.0]}), "pruned") is None


def test_the_ablation_needs_a_part_left_out() -> None:
    assert table(group(CLEAR), "ablation") is None
    for kind, name in (("alg", "Alg. only"), ("arch", "Arch. only")):
        rows = rows_of(group({**CLEAR, kind: [75.0, 75.3, 75.1]}), "ablation")
        assert [row.name for row in rows] == ["base", name, "PT2", "base, 2× epochs"]


def test_equal_passes_are_explained_only_where_they_are_shown() -> None:
    explained = "base, m× epochs: "
    assert explained in table(group(CLEAR), "pruned").markdown()  # type: ignore[union-attr]
    without = {kind: values for kind, values in CLEAR.items() if kind != "base-x2"}
    assert explained not in table(group(without), "pruned").markdown()  # type: ignore[union-attr]


@pytest.mark.parametrize("target", ["pruned", "full", "ablation"])
def test_tables_of_a_real_study(small_study: Path, target: str) -> None:
    with open(small_study / "tables" / f"digits-fast-{target}.csv") as file:
        lines = list(csv.DictReader(file))
    of_ensembles = ("base", "PT2", "T2")  # these have four
    assert [line["n"] for line in lines] == ["4" if line["model"] in of_ensembles else "2" for line in lines]
    assert len(lines) == (5 if target == "ablation" else 7)
