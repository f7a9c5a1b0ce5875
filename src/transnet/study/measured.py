"""What a study measures on its networks themselves, kept as JSON: the report then needs neither weights nor data.

OUT/measured/<group>.json    the points of Fig. 3, the kernels of Figs. 5 and 6, and which runs they were taken from
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transnet.study.ensembles import measure_ensembles, runs_for_ensembles
from transnet.study.finished import FinishedRun, Group
from transnet.study.kernels import compare
from transnet.train.checkpoint import write_atomically

KERNELS = {"base": "base", "t2": "T2", "t3": "T3", "t4": "T4"}
GROUP = "r0,r1,r2,r3"


def measure(group: Group, out: Path, *, device: str = "auto") -> dict[str, Any]:
    """``{"ensembles": … | None, "invariance": … | None}`` of a group; only what is new is computed.

    Where the weights of the runs are not there, what was measured before is given.
    """
    path = out / "measured" / f"{group.name}.json"
    before: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    found: dict[str, Any] = {"schema": 1}
    parts = {
        "ensembles": (runs_for_ensembles(group), lambda: measure_ensembles(group, device=device)),
        "invariance": (_runs_for_kernels(group), lambda: _kernels(group)),
    }
    for part, (runs, compute) in parts.items():
        marks = {run.name: _mark(run) for run in runs}
        known = before.get(part)
        there = bool(runs) and all((run.path / "model.safetensors").exists() for run in runs)
        if known and (known["runs"] == marks or not there):
            found[part] = known
        elif there:
            found[part] = {"runs": marks, "content": compute()}
    if found != before:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(found, indent=1).encode())
    return {part: found[part]["content"] if part in found else None for part in parts}


def _runs_for_kernels(group: Group) -> list[FinishedRun]:
    return [run for kind in KERNELS for run in group.compared(kind)]


def _kernels(group: Group) -> dict[str, Any]:
    """The first seed's kernels, for the figures, and every seed's mean in the last layer."""
    runs = _runs_for_kernels(group)
    first = min(run.seed for run in runs)
    drawn = [run for run in runs if run.seed == first]
    comparison = compare([str(run.path) for run in drawn], group=GROUP, measure="l2")
    comparison["runs"] = {KERNELS[run.kind]: comparison["runs"][str(run.path)] for run in drawn}
    comparison["seed"] = first
    comparison["last_layer"] = {}
    for how in ("l2", "relative", "cosine", "pearson"):
        every = compare([str(run.path) for run in runs], group=GROUP, measure=how)["runs"]
        comparison["last_layer"][how] = {
            KERNELS[kind]: [_last(every[str(run.path)]) for run in group.compared(kind)]
            for kind in KERNELS
            if group.compared(kind)
        }
    return comparison


def _last(run: dict[str, Any]) -> float:
    layers: Sequence[dict[str, Any]] = list(run["layers"].values())
    mean: float = layers[-1]["mean"]
    return mean


def _mark(run: FinishedRun) -> str:
    return hashlib.sha256((run.path / "result.json").read_bytes()).hexdigest()[:16]
