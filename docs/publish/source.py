"""Reading results/, and naming where a figure comes from."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transnet.report.table_format import Cell, mean_of

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


def read(name: str) -> Any:
    """A benchmark's file."""
    return json.loads((RESULTS / name).read_text())


def link(name: str) -> str:
    return f"[results/{name}](results/{name})"


def made_with(device: str, torch: str, commit: str | None) -> str:
    """Device, version and commit: every figure has them beside it."""
    return f"{device}, torch {torch}" + (f", commit {commit}" if commit else "")


def origin(found: dict[str, Any], name: str) -> str:
    """The same of a benchmark's file, with a link to it."""
    return f"{made_with(found['device'], found['versions']['torch'], found['commit'])} ({link(name)})"


def grid(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown: numbers to the right, text to the left."""
    texts = [[cell.text if isinstance(cell, Cell) else str(cell) for cell in row] for row in rows]
    numeric = [all(re.match(r"[+−\d–]|$", text) for text in column) for column in zip(*texts)]
    rules = ["---:" if right else "---" for right in numeric]
    return "\n".join("| " + " | ".join(line) + " |" for line in (columns, rules, *texts))


def figure(values: Sequence[float], form: str = ".2f") -> str:
    """Mean ± standard error."""
    return mean_of(values, form).text


def counted(n: int) -> str:
    """The number of runs behind a figure."""
    return "one seed" if n == 1 else f"n = {n}"


def remark(found: dict[str, Any]) -> str:
    """A remark that the file itself contains."""
    return f" Remark in the file: {found['remark']}" if "remark" in found else ""
