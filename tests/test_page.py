"""The report in a real browser: it renders, sorts, opens a run, and loads nothing from the network."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import chromium
from transnet.errors import FileError
from transnet.report.page import write_report


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as window:
        yield window


@pytest.fixture
def page(browser: Any, small_study: Path) -> Iterator[Any]:
    show_width(browser, 1280)
    browser.get("about:blank")
    browser.get((small_study / "report.html").as_uri())
    yield browser
    assert browser.get_log("browser") == []


def show_width(browser: Any, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def column(page: Any, table: str, index: int) -> list[str]:
    script = (
        "return [...document.getElementById(arguments[0]).tBodies[0].rows].map(r => r.cells[arguments[1]].innerText)"
    )
    found: list[str] = page.execute_script(script, table, index)
    return found


def test_tables_and_figures_are_rendered(page: Any) -> None:
    assert page.title == "TransNet: digits-fast"
    assert column(page, "digits-fast-pruned", 0)[:4] == ["baseline", "PT2", "PT3", "PT4"]
    for svg in page.find_elements("css selector", "figure svg"):
        assert svg.size["width"] > 300
        assert svg.size["height"] > 150
    assert len(page.find_elements("css selector", "figure svg")) == 4


@pytest.mark.parametrize("index", [1, 4])  # accuracy and a difference, which may be below zero
def test_a_click_sorts_and_a_second_click_reverses(page: Any, index: int) -> None:
    head = page.find_element("css selector", f"#digits-fast-pruned thead th:nth-child({index + 1})")
    for descending in (True, False):
        head.find_element("css selector", "button").click()
        shown = [text.split()[0] for text in column(page, "digits-fast-pruned", index)]
        values = [float(text.replace("−", "-")) for text in shown if text != "–"]
        assert values == sorted(values, reverse=descending)
    assert head.get_attribute("aria-sort") == "ascending"


def test_rows_without_a_value_sort_last_in_both_orders(page: Any) -> None:
    heads = page.find_elements("css selector", "#digits-fast-pruned thead button")
    to_base = next(i for i, head in enumerate(heads) if head.text == "to baseline")
    for _ in range(2):
        heads[to_base].click()
        assert column(page, "digits-fast-pruned", 0)[-1] == "baseline"


def test_a_link_opens_a_run(page: Any) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    run = page.find_element("id", "run-digits-fast-t2-s1")
    every = page.find_element("css selector", "details.runs")
    assert not every.get_property("open")
    assert not page.find_element("css selector", "#run-digits-fast-t2-s1 summary").is_displayed()
    page.find_element("link text", "digits-fast-t2-s1").click()
    WebDriverWait(page, 10).until(lambda _: run.get_property("open"))  # the event comes later
    assert "transnet train digits --out runs/digits-fast-t2-s1" in run.text
    assert "train_fraction" in run.text
    assert len(run.find_elements("css selector", ".curve polyline")) == 4
    every.find_element("css selector", "summary").click()
    assert not every.get_property("open")
    page.find_element("link text", "digits-fast-t2-s1").click()  # the address is already that of the run
    WebDriverWait(page, 10).until(lambda _: every.get_property("open"))


def test_the_address_of_a_run_opens_it(page: Any, small_study: Path) -> None:
    page.get("about:blank")
    page.get((small_study / "report.html").as_uri() + "#run-digits-fast-t4-s0")
    assert "transnet train digits" in page.find_element("id", "run-digits-fast-t4-s0").text
    assert not page.find_element("id", "run-digits-fast-t3-s0").get_property("open")


def test_downloads_contain_the_tables(page: Any, small_study: Path) -> None:
    script = "return fetch(arguments[0]).then(response => response.text())"
    for kind, suffix in (("CSV", ".csv"), ("Markdown", ".md")):
        link = page.find_element("link text", kind)
        name = link.get_attribute("download")
        assert name == f"digits-fast-summary{suffix}"
        assert page.execute_script(script, link.get_attribute("href")) == (small_study / "tables" / name).read_text()


@pytest.mark.parametrize("width", [360, 768, 1600])
def test_no_screen_scrolls_sideways(page: Any, width: int) -> None:
    show_width(page, width)
    page.execute_script("document.querySelectorAll('details').forEach(details => details.open = true)")
    assert page.execute_script("return document.documentElement.scrollWidth") <= width


def test_figures_fit_a_phone(page: Any) -> None:
    show_width(page, 390)
    for svg in page.find_elements("css selector", "figure svg"):
        assert svg.rect["x"] >= 0
        assert svg.rect["x"] + svg.rect["width"] <= 390
        sizes = page.execute_script(
            "return [...arguments[0].querySelectorAll('text')].map(t => t.getBoundingClientRect().height)", svg
        )
        assert min(sizes) > 6


def test_figures_are_in_two_columns_if_they_fit(page: Any) -> None:
    def places() -> list[tuple[int, int]]:
        return [(svg.rect["x"], svg.rect["y"]) for svg in page.find_elements("css selector", "figure svg")]

    show_width(page, 1400)
    (left, above), (right, beside), (_, below), _ = places()
    assert left < right
    assert abs(above - beside) < 2
    assert below > above
    show_width(page, 390)
    assert len({x for x, _ in places()}) == 1
    show_width(page, 1400)
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert len({x for x, _ in places()}) == 1
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_table_headers_have_one_line_on_a_phone(page: Any) -> None:
    show_width(page, 390)
    table = page.find_element("id", "digits-fast-pruned")
    header, row = (table.find_element("css selector", f"{part} tr") for part in ("thead", "tbody"))
    before = header.rect["height"]
    assert before < 1.5 * row.rect["height"]
    header.find_element("css selector", "th:nth-child(2) button").click()
    assert header.rect["height"] == before


def test_a_wide_table_marks_hidden_columns_and_keeps_its_row_names(page: Any) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    box = page.find_element("css selector", ".wide:has(#digits-fast-pruned)")

    def edges() -> set[str]:
        return {name for name in (box.get_attribute("class") or "").split() if name.startswith("more-")}

    def opacity() -> str:
        found: str = page.execute_script("return getComputedStyle(arguments[0], '::after').opacity", box)
        return found

    show_width(page, 1600)
    WebDriverWait(page, 10).until(lambda _: edges() == set())
    assert opacity() == "0"
    show_width(page, 390)
    WebDriverWait(page, 10).until(lambda _: edges() == {"more-right"})
    assert opacity() == "1"
    name = page.find_element("css selector", "#digits-fast-pruned tbody th")
    before = name.rect["x"]
    for part, seen in ((2, {"more-left", "more-right"}), (1, {"more-left"})):
        script = "const [box, part] = arguments; box.scrollLeft = (box.scrollWidth - box.clientWidth) / part"
        page.execute_script(script, box.find_element("css selector", ".scroll"), part)
        WebDriverWait(page, 10).until(lambda _, seen=seen: edges() == seen)
        assert name.rect["x"] == before
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        style = "return getComputedStyle(arguments[0], '::after').display"
        assert page.execute_script(style, box) == "none"
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_dark_and_light_are_both_legible(page: Any) -> None:
    script = "const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]"
    seen = []
    for _ in range(2):
        text, ground = ([int(n) for n in re.findall(r"\d+", colour)][:3] for colour in page.execute_script(script))
        assert abs(sum(text) - sum(ground)) > 450
        seen.append(sum(text) > sum(ground))
        page.find_element("id", "theme").click()
    assert sorted(seen) == [False, True]


def test_nothing_comes_from_the_network(page: Any, small_study: Path) -> None:
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    own = {"about", "chrome"}  # the browser's first tab
    assert {url.partition(":")[0] for url in asked} <= {"file", "data"} | own
    text = (small_study / "report.html").read_text()
    assert not re.search(r'(?:src|href)="(?!#|data:)', text.replace('xlink:href="#', 'href="#'))
    assert str(small_study) not in text


def changed_result(study: Path, run: str, change: Any) -> None:
    path = study / "runs" / run / "result.json"
    result = json.loads(path.read_text())
    change(result)
    path.write_text(json.dumps(result))


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no finished run"):
        write_report(tmp_path)


def test_a_single_run_is_refused(small_study: Path) -> None:
    with pytest.raises(FileError, match="evaluate"):
        write_report(small_study / "runs" / "digits-fast-t2-s0")


def test_runs_with_different_data_are_not_compared(small_study: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(small_study, tmp_path / "copy")
    changed_result(copy, "digits-fast-t2-s1", lambda result: result["config"]["data"].update(fingerprint="another"))
    with pytest.raises(FileError, match="digits-fast-t2-s1"):
        write_report(copy)


def test_damaged_results_are_named(small_study: Path, tmp_path: Path) -> None:
    name = "digits-fast-base-s0"
    shutil.copytree(small_study / "runs" / name, tmp_path / "runs" / name)
    assert write_report(tmp_path).exists()
    (tmp_path / "runs" / name / "result.json").write_text("{}")
    with pytest.raises(FileError, match=name):
        write_report(tmp_path)


def test_variants_with_any_name_are_reported(small_study: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        for kind, name in (("t2", "wide"), ("base", "plain")):
            run = small_study / "runs" / f"digits-fast-{kind}-s{seed}"
            shutil.copytree(run, tmp_path / "runs" / f"mine-{name}-s{seed}")
    page = write_report(tmp_path).read_text()
    assert "wide, all heads" in page
    assert (tmp_path / "tables" / "mine-variants.csv").exists()


def test_tables_of_a_series_with_a_longer_name_are_kept(small_study: Path, tmp_path: Path) -> None:
    for name in ("mine", "mine-2"):
        for kind in ("base", "t2"):
            run = small_study / "runs" / f"digits-fast-{kind}-s0"
            shutil.copytree(run, tmp_path / "runs" / f"{name}-x{kind}-s0")
    write_report(tmp_path)
    assert {path.name for path in tmp_path.glob("tables/*.csv")} >= {"mine-variants.csv", "mine-2-variants.csv"}


def test_outdated_tables_are_deleted(small_study: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(small_study, tmp_path / "copy")
    for run in copy.glob("runs/*-a*-s*"):
        shutil.rmtree(run)
    assert (copy / "tables" / "digits-fast-ablation.md").exists()
    write_report(copy)
    assert not (copy / "tables" / "digits-fast-ablation.md").exists()
    assert (copy / "tables" / "digits-fast-pruned.md").exists()


def test_files_contain_no_path_of_the_machine(small_study: Path) -> None:
    files = [path for path in small_study.rglob("*") if path.suffix in (".json", ".jsonl", ".html", ".md")]
    assert len(files) > 60
    for path in files:
        assert str(small_study) not in path.read_text(), path
    command = json.loads((small_study / "runs" / "digits-fast-t2-s1" / "result.json").read_text())["command"]
    assert "--out digits-fast-t2-s1" in command
