"""Reading results/, naming where a figure comes from, and tables in Markdown."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transnet.report.table_format import Cell, mean_of

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


def read(name: str) -> Any:
    """A benchmark's file; its entry ``origin`` names device, version, commit and file, as every figure needs."""
    found = json.loads((RESULTS / name).read_text())
    remark = f" Remark in the file: {found['remark']}" if "remark" in found else ""
    where = made_with(found["device"], found["versions"]["torch"], found["commit"])
    return {**found, "origin": f"{where} ({link(name)}).{remark}"}


def link(name: str) -> str:
    return f"[results/{name}](results/{name})"


def made_with(device: str, torch: str, commit: str | None) -> str:
    return f"{device}, torch {torch}" + (f", commit {commit}" if commit else "")


def grid(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown: numbers to the right, text to the left."""
    texts = [[cell.text if isinstance(cell, Cell) else str(cell) for cell in row] for row in rows]
    numeric = [all(re.match(r"[+−\d–]|$", text) for text in column) for column in zip(*texts)]
    rules = ["---:" if right else "---" for right in numeric]
    return "\n".join("| " + " | ".join(line) + " |" for line in (columns, rules, *texts))


def figure(values: Sequence[float], form: str = ".2f") -> str:
    """Mean ± standard error."""
    return mean_of(values, form).text


def percent(fraction: float, form: str = ".2f") -> str:
    return f"{100 * fraction:{form}}"


def counted(n: int) -> str:
    """The number of runs behind a figure."""
    return "one seed" if n == 1 else f"n = {n}"
