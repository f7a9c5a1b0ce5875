"""The accuracy tables: errors, intervals, cost and bold type, on runs with given accuracies."""

import csv
import io
import math
import re
from pathlib import Path

import pytest
from scipy import stats

from made_up_runs import CLEAR, series
from transnet.report.table_format import TEXTS, Table, verdict
from transnet.report.tables import (
    accuracy_tables,
    differences_table,
    name_of,
    paper_table,
    published,
    rows_of,
    summary_table,
)
from transnet.study.file import Comparison
from transnet.study.results import KINDS
from transnet.study.statistics import as_text, difference, mean_and_error


def table(values: dict[str, list[float]], key: str = "pruned", *, data: str = "cifar100", flip: bool = True) -> Table:
    found = paper_table(series(values, data=data, flip=flip), key)
    assert found is not None
    return found


def texts(found: Table | None) -> dict[str, list[str]]:
    assert found is not None
    return {row[0].text: [cell.text for cell in row[1:]] for row in found.rows}


def test_rows_have_mean_error_and_cost() -> None:
    baseline, pt2, _, longer = rows_of(series(CLEAR), "pruned")
    assert mean_and_error(pt2.accuracies) == pytest.approx((79.2, 0.2 / math.sqrt(3)))
    assert [row.train_passes for row in (baseline, pt2, longer)] == [1000, 2000, 2000]
    assert [row.predict_passes for row in (baseline, pt2, longer)] == [2, 2, 2]
    assert [row.parameters for row in (baseline, pt2, longer)] == [1000, 1000, 1000]
    full = rows_of(series(CLEAR), "full")[1]
    assert (full.name, full.predict_passes, full.parameters) == ("T2", 4, 1100)


def test_differences_to_the_baseline_and_at_equal_training_compute() -> None:
    pt2 = rows_of(series(CLEAR), "pruned")[1]
    assert pt2.to_baseline is not None
    assert pt2.to_longer is not None
    assert pt2.to_baseline.mean == pytest.approx(3.0)
    assert pt2.to_longer.mean == pytest.approx(79.2 - 77.1333, abs=1e-3)


def test_intervals_are_welchs() -> None:
    ours, others = [79.0, 79.2, 79.7], [76.0, 76.8, 76.4, 77.0]
    a, b = (stats.sem(values) ** 2 for values in (ours, others))
    degrees = (a + b) ** 2 / (a**2 / 2 + b**2 / 3)
    half = stats.t.ppf(0.975, degrees) * math.sqrt(a + b)
    found = difference(ours, others)
    assert (found.low, found.high) == pytest.approx((found.mean - half, found.mean + half))


def test_only_a_significant_lead_is_bold() -> None:
    assert [row[1].bold for row in table(CLEAR).rows] == [False, True, False, False]
    close = {**CLEAR, "t3": [79.0, 79.3, 79.0]}
    assert "**" not in table(close).markdown()
    assert "| **79.20 ± 0.12** |" in table(CLEAR).markdown()


def test_one_seed_has_no_interval_and_nothing_bold() -> None:
    markdown = table({"base": [76.0], "t2": [99.0]}).markdown()
    assert "1 (one seed)" in markdown
    assert "**" not in markdown
    assert "[" not in markdown


@pytest.mark.parametrize(
    ("ours", "others", "expected"),
    [
        ([79.0, 79.2, 79.4], [76.0, 76.2], "ahead"),
        ([76.0, 76.2], [79.0, 79.2, 79.4], "behind"),
        ([79.0, 79.2, 79.4], [79.3, 79.0, 79.2], "not significant"),
        ([79.0], [76.0], ""),
        ([80.0, 80.0], [70.0, 70.0], ""),  # without spread there is no interval
    ],
)
def test_verdicts(ours: list[float], others: list[float], expected: str) -> None:
    assert verdict(difference(ours, others)) == expected


def test_every_run_counts_if_kinds_differ_in_number() -> None:
    baseline, pt2 = rows_of(series({"base": [76.0, 76.2, 76.4, 76.6], "t2": [79.0, 79.1]}), "pruned")
    assert (len(baseline.accuracies), len(pt2.accuracies)) == (4, 2)
    assert pt2.to_baseline is not None
    assert pt2.to_baseline.n == (2, 4)
    assert pt2.to_baseline.mean == pytest.approx(79.05 - 76.3)


def test_the_papers_numbers_are_shown() -> None:
    found = table(CLEAR)
    pt2 = dict(zip(found.columns, found.rows[1], strict=True))
    assert pt2["paper %"].text == "79.33 ± 0.15"
    error = math.hypot(0.15, 0.2 / math.sqrt(3))
    assert pt2["ours − paper"].value == pytest.approx(79.2 - 79.33)
    assert dict(pt2["ours − paper"].more)["standard error"] == pytest.approx(error)


def test_all_of_the_papers_numbers_are_known() -> None:
    rows = ("baseline", "PT2", "PT3", "PT4", "T2", "T3", "T4", "Alg. only", "Arch. only")
    data = ("cifar10", "cifar100", "imagenette", "imagewoof", "imagenet200")
    assert all(published(row, name) for row in rows for name in data)
    assert published("T3", "imagewoof") == (88.79, 0.25)
    assert published("Alg. only", "imagenet200") == (80.58, 0.08)
    assert published("PT2", "digits") is None
    assert published("baseline, 2× epochs", "cifar10") is None


def test_every_kind_of_the_paper_has_a_name() -> None:
    assert list(TEXTS["names"]) == list(KINDS)
    assert (name_of("t2", "pruned"), name_of("t2", "full")) == ("PT2", "T2")
    assert (name_of("wide", "full", heads=2), name_of("wide", "full")) == ("wide, all heads", "wide")


def test_without_training_flips_the_image_alone_is_tested() -> None:
    assert rows_of(series(CLEAR, data="digits", flip=False), "pruned")[1].predict_passes == 1
    assert not any("paper" in column for column in table(CLEAR, data="digits", flip=False).columns)


def test_csv_keeps_numbers_unrounded_and_every_run() -> None:
    lines = list(csv.DictReader(io.StringIO(table(CLEAR).csv())))
    assert [line["model"] for line in lines] == ["baseline", "PT2", "PT3", "baseline, 2× epochs"]
    assert float(lines[1]["accuracy %: standard error"]) == pytest.approx(0.2 / math.sqrt(3), abs=1e-12)
    assert [float(lines[1][f"accuracy %: run {i}"]) for i in (1, 2, 3)] == pytest.approx([79.0, 79.2, 79.4])
    assert float(lines[1]["to baseline: low"]) > 0


def test_text_has_a_minus_sign_and_csv_a_hyphen() -> None:
    found = table({**CLEAR, "t3": [75.0, 75.2, 75.1]})
    assert "| PT3 | 75.10 ± 0.06 | 3 | −1.10 [" in found.markdown()
    assert "| −3.98 ± 0.08 |" in found.markdown()  # ours − paper
    assert not re.search(r"(?<!\w)-\d", found.markdown())
    lines = list(csv.DictReader(io.StringIO(found.csv())))
    assert float(lines[2]["to baseline"]) == pytest.approx(-1.1)
    assert found.rows[2][3].value == pytest.approx(-1.1)  # the page sorts by it


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [(-0.004, "+.2f", "+0.00"), (-0.0, ".1f", "0.0"), (-0.04, ".1f", "0.0"), (-0.006, "+.2f", "−0.01")],
)
def test_numbers_that_round_to_zero_have_no_minus(value: float, form: str, text: str) -> None:
    assert as_text(value, form) == text


def test_the_image_alone_has_its_own_table() -> None:
    rows = {row.name: row for row in rows_of(series(CLEAR), "unmirrored")}
    assert list(rows) == ["baseline", "PT2", "PT3", "T2", "T3", "baseline, 2× epochs"]
    assert [row.predict_passes for row in rows.values()] == [1, 1, 1, 2, 3, 1]
    assert rows["PT2"].accuracies == pytest.approx((69.0, 69.2, 69.4))
    assert not any("paper" in column for column in table(CLEAR, "unmirrored").columns)
    assert not rows_of(series(CLEAR, data="digits", flip=False), "unmirrored")  # Tables 2 and 3 show it already


def test_tables_need_a_baseline_and_another_kind() -> None:
    assert paper_table(series({"t2": [79.0]}), "pruned") is None
    assert paper_table(series({"base": [79.0]}), "pruned") is None


def test_the_ablation_needs_one_of_its_parts() -> None:
    assert paper_table(series(CLEAR), "ablation") is None
    for kind, name in (("alg", "Alg. only"), ("arch", "Arch. only")):
        found = texts(table({**CLEAR, kind: [75.0, 75.3, 75.1]}, "ablation"))
        assert list(found) == ["baseline", name, "PT2", "baseline, 2× epochs"]


def test_self_distilled_heads_have_a_table_on_the_image_alone() -> None:
    assert paper_table(series(CLEAR), "taught") is None
    rows = {row.name: row for row in rows_of(series({**CLEAR, "t2-taught": [80.9, 81.0, 81.2]}), "taught")}
    assert list(rows) == ["baseline", "PT2", "PT2 self-distilled", "T2", "T2 self-distilled", "baseline, 2× epochs"]
    assert [row.predict_passes for row in rows.values()] == [1, 1, 1, 2, 2, 1]
    assert rows["PT2 self-distilled"].to_longer is not None


def test_differences_between_kinds_are_a_table() -> None:
    values = {**CLEAR, "t2-taught": [80.9, 81.0, 81.2], "alg": [77.9, 78.0, 78.2]}
    found = differences_table(series(values))
    assert found is not None
    pairs = {(row[0].text, row[1].text): [cell.text for cell in row[2:]] for row in found.rows}
    assert pairs["PT2 self-distilled", "PT2"] == ["+1.83 [+1.42, +2.25]", "ahead", "3", "3"]
    assert pairs["PT2, flip TTA", "Alg. only, flip TTA"][:2] == ["+1.17 [+0.75, +1.58]", "ahead"]
    # Two heads on the image alone take as many passes as the longer baseline with flip TTA.
    assert pairs["T2", "baseline, 2× epochs, flip TTA"][1] == "behind"
    plain = differences_table(series({**CLEAR, "t2-taught": [80.9, 81.0]}, data="digits", flip=False))
    assert list(texts(plain)) == ["PT2 self-distilled", "T2 self-distilled"]
    assert differences_table(series({"base": [1.0]})) is None


def test_the_summary_has_every_classifier_with_and_without_flip() -> None:
    values = {**CLEAR, "t4": [75.0, 75.1, 75.2], "base-x3": [78.1, 78.4]}
    found = texts(summary_table(series(values)))
    assert list(found) == ["PT2", "PT3", "PT4", "T2", "T3", "T4"]
    assert found["PT2"] == ["+3.00 ahead", "+2.07 ahead", "+3.00 ahead", "+2.07 ahead"]
    assert found["PT3"][:2] == ["+1.93 ahead", "−0.12 not significant"]
    assert found["PT4"] == ["−1.10 behind", "–", "−1.10 behind", "–"]
    assert texts(summary_table(series({"base": [76.0], "t2": [79.0]})))["PT2"] == ["+3.00", "+3.00"]
    assert summary_table(series({"base": [76.0]})) is None


def test_variants_with_any_name_have_a_table() -> None:
    (found,) = accuracy_tables(series({"high-lr": [70.0, 71.0], "low-lr": [60.0]}, full=1))
    rows = texts(found)
    assert found.key == "variants"
    assert rows["high-lr, pruned"] == ["60.50 ± 0.50", "70.50 ± 0.50", "2", "2,000", "1", "–"]
    assert rows["high-lr, all heads"] == ["61.50 ± 0.50", "71.50 ± 0.50", "2", "2,000", "2", "1,100"]
    assert rows["low-lr, pruned"][2] == "1 (one seed)"


@pytest.mark.parametrize("key", ["pruned", "full", "ablation"])
def test_tables_of_a_real_study(small_study: Path, key: str) -> None:
    with open(small_study / "tables" / f"digits-fast-{key}.csv") as file:
        lines = list(csv.DictReader(file))
    in_ensembles = ("baseline", "PT2", "T2")  # these have four seeds
    assert [line["n"] for line in lines] == ["4" if line["model"] in in_ensembles else "2" for line in lines]
    assert len(lines) == (5 if key == "ablation" else 7)


def test_the_comparisons_of_a_study_file_are_in_the_differences() -> None:
    found = series({"high-lr": [70.0, 71.0], "plain": [60.0, 60.5], "base": [60.0]})
    found.compare = (Comparison("high-lr", "plain"), Comparison("high-lr", "gone"))
    table = differences_table(found)
    assert table is not None
    pairs = [(row[0].text, row[1].text, row[2].value) for row in table.rows]
    assert pairs == [
        ("high-lr, pruned", "plain, pruned", pytest.approx(10.25)),
        ("high-lr, pruned, flip TTA", "plain, pruned, flip TTA", pytest.approx(10.25)),
        ("high-lr, all heads", "plain, all heads", pytest.approx(10.25)),
        ("high-lr, all heads, flip TTA", "plain, all heads, flip TTA", pytest.approx(10.25)),
    ]
