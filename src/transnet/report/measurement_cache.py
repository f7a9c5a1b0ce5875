"""What a report measured on networks, kept as JSON, so that weights and predictions can be deleted afterwards."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from transnet.runs.files import read_json, write_atomically
from transnet.runs.records import decode, encode
from transnet.study.results import FinishedRun

T = TypeVar("T")
SCHEMA = 3


class MeasurementCache:
    """The measurements of one series in OUT/measured/SERIES.json, valid as long as their runs keep their weights."""

    def __init__(self, out: Path, series: str) -> None:
        self.path = out / "measured" / f"{series}.json"
        content = read_json(self.path, "") if self.path.exists() else {}
        parts = content.get("parts") if content.get("schema") == SCHEMA else None
        self.parts: dict[str, object] = parts if isinstance(parts, dict) else {}

    def get(self, kind: type[T], name: str, runs: Sequence[FinishedRun], measure: Callable[[], T | None]) -> T | None:
        """Return the entry, a record of ``kind``, or measure and keep it. None: there is nothing to measure with."""
        weights = {run.name: run.result.model_sha256 for run in runs}
        part = self.parts.get(name)
        if isinstance(part, dict) and part.get("runs") == weights:
            return decode(kind, part.get("found"), f"{self.path} ({name})")
        new = measure()
        if new is not None:
            self.parts[name] = {"runs": weights, "found": encode(new)}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, json.dumps({"schema": SCHEMA, "parts": self.parts}, indent=1).encode())
        return new
