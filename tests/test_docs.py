"""The code of README and docs runs on small data, and the site builds without a warning."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from browser import chromium
from small_runs import environment
from trained import digit_files, digits_run
from transnet.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*) -->\n)?```(?: \{\.)?(?P<kind>\w*)\}?\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)
INCLUDED = re.compile(r'--8<-- "(.*)"\n')
# Options that make a command of the docs small enough for a test; its other options stay.
SMALL = {
    "train": {"epochs": 1, "device": "cpu", "evaluate-every": 0},
    "reproduce": {"seeds": 1, "epochs": 1, "train-fraction": 0.1, "device": "cpu"},
}


@dataclass(frozen=True)
class Block:
    """A code block on a page. A comment before it may mark it as slow or not run, with the reason."""

    page: Path
    line: int
    kind: str
    code: str
    mark: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def slow(self) -> bool:
        return self.mark.startswith("slow: ")

    @property
    def runs(self) -> bool:
        return not self.mark.startswith("not run: ") and not self.examples

    @property
    def examples(self) -> list[str]:
        """Scripts that the block includes or calls; tests/test_examples.py runs them."""
        included = INCLUDED.fullmatch(self.code)
        called = re.fullmatch(r"python (examples/\w+\.py)( .*)?\n", self.code)
        return [found[1] for found in (included, called) if found]

    def commands(self) -> list[list[str]]:
        lines = self.code.replace("\\\n", " ").splitlines()
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("code")) + 1
        found.append(Block(page, line, match["kind"], match["code"], match["mark"] or ""))
    return found


BLOCKS = [block for page in PAGES for block in blocks(page) if block.kind in ("python", "bash")]


def pages(*, slow: bool) -> list[Path]:
    # The tutorial's five commands have a test of their own.
    return [p for p in PAGES if p.stem != "tutorial" and any(b.page == p and b.runs and b.slow == slow for b in BLOCKS)]


def follow(page: Path, folder: Path, *, slow: bool) -> None:
    """Run a page's code in order, in a folder with the images and the run of the tutorial."""
    for path in digit_files(folder / "all", 120):
        target = folder / "photos" / path.name[0]
        target.mkdir(parents=True, exist_ok=True)
        path.rename(target / path.name)
    digit_files(folder / "new", 5)
    shutil.copytree(digits_run("r0,r1"), folder / "runs" / "t2")
    names: dict[str, object] = {"__name__": "__main__"}
    for block in BLOCKS:
        if block.page != page or not block.runs or (block.slow and not slow):
            continue
        if block.kind == "python":  # empty lines, so that errors have the page's line number
            exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), names)
            continue
        for words in block.commands():
            assert main(small(words)) == 0, f"{block.where}: {shlex.join(words)}"


def small(words: list[str]) -> list[str]:
    verb, *rest = words[1:]
    for name, value in SMALL.get(verb, {}).items():
        flag = f"--{name}"
        if flag in rest:
            rest[rest.index(flag) + 1] = str(value)
        else:
            rest += [flag, str(value)]
    return [verb, *rest]


@pytest.mark.parametrize("page", pages(slow=False), ids=lambda page: page.stem)
def test_a_pages_code_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    follow(page, tmp_path, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", pages(slow=True), ids=lambda page: page.stem)
def test_a_pages_slow_code_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    follow(page, tmp_path, slow=True)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "howto").glob("*.md")), ids=lambda page: page.stem)
def test_a_howto_can_be_followed_after_the_tutorial(page):
    def made(page: Path) -> list[str]:
        commands = [words for b in BLOCKS if b.page == page and b.runs and b.kind == "bash" for words in b.commands()]
        return [words[words.index("--out") + 1] for words in commands if "--out" in words]

    assert not set(made(page)) & set(made(ROOT / "docs" / "tutorial.md"))


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.where)
def test_code_runs_or_gives_a_reason_why_not(block):
    if block.mark:
        assert re.fullmatch(r"(not run|slow): \w.{5,}", block.mark), f"{block.where}: {block.mark!r}"
    for example in block.examples:
        assert (ROOT / example).is_file(), f"{block.where}: {example} does not exist"
        assert Path(example).stem in (ROOT / "tests" / "test_examples.py").read_text()
    if block.kind == "bash" and block.runs:
        for words in block.commands():
            known = words[0] == "transnet" and words[1] in COMMANDS
            assert known, f"{block.where}: {shlex.join(words)} is not run; give the reason: <!-- not run: reason -->"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_are_in_bash_or_python_blocks(page):
    for block in blocks(page):
        if block.kind not in ("bash", "python"):
            assert not re.search(r"^(transnet|python|pip) ", block.code, re.MULTILINE), f"{block.where}: write ```bash"


# ------------------------------------------------------------------------------------------------ a new user's path


@pytest.mark.slow
def test_the_tutorials_commands_lead_from_a_folder_to_a_prediction(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from new_user_path import commands, walk

    assert [shlex.split(command)[1] for command in commands()] == ["train", "evaluate", "prune", "prune", "predict"]
    rows, images = walk(tmp_path)
    assert [row["status"] for row in rows] == [0] * 5, rows[-1]["printed"]
    assert images == 1792
    assert (tmp_path / "models" / "better" / "model.safetensors").is_file()
    assert (tmp_path / "models" / "onnx" / "model.onnx").is_file()
    predictions = re.findall(r"new/(\d)-\d\.png\s+│\s+(\d)", rows[-1]["printed"])
    assert len(predictions) == 5
    assert sum(label == predicted for label, predicted in predictions) >= 4


def test_the_measured_commands_are_those_of_the_tutorial(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from new_user_path import commands

    measured = json.loads((ROOT / "results" / "new_user_path.json").read_text())
    assert [row["command"] for row in measured["rows"]] == commands()


# ---------------------------------------------------------------------------------------------------------- the site


def test_the_figures_equal_the_output_of_their_script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "figures"))
    from method import drawings

    for name, content in drawings().items():
        assert (ROOT / "docs" / "figures" / name).read_text() == content, f"run python docs/figures/method.py: {name}"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert "WARNING  -" not in built.stderr
    return folder


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="?(https?:[^"\s>]+)', page.read_text())
        assert not loaded, f"{page.name}: {loaded}"


@pytest.mark.slow
def test_tables_of_results_fit_a_laptop_in_single_lines(site):
    with chromium() as driver:
        size = {"width": 1400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.get((site / "results.html").as_uri())
        tables = driver.find_elements("css selector", "table:has(td[style*=right])")
        assert tables
        room = driver.execute_script("return document.querySelector('.md-content__inner').clientWidth")
        for table in tables:
            assert table.get_property("scrollWidth") <= room
            heights = {cell.size["height"] for cell in table.find_elements("css selector", "td")}
            assert max(heights) < 40, "a cell has two lines"


@pytest.mark.slow
def test_pages_fit_wide_and_narrow_screens_and_report_no_error(site):
    with chromium() as driver:
        for name in ("index", "tutorial", "howto/export", "method", "results", "reference/python", "reference/parts"):
            for width in (1300, 390):
                driver.execute_cdp_cmd(
                    "Emulation.setDeviceMetricsOverride",
                    {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
                )
                driver.get((site / f"{name}.html").as_uri())
                assert driver.find_element("css selector", "h1").text
                wide = driver.execute_script("return document.documentElement.scrollWidth")
                assert wide <= width, f"{name} is {wide} pixels wide on a screen of {width}"
        errors = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
        assert not errors
