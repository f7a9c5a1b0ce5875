"""The finished runs of a study's folder, by what they have in common, by kind and by seed."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transnet.study.plan import KINDS, Study, parse_name
from transnet.train.checkpoint import write_atomically
from transnet.train.config import ConfigError
from transnet.train.run import Run

ORDER = tuple(KINDS)


@dataclass(frozen=True)
class FinishedRun:
    """A run with what its folder says."""

    name: str
    kind: str
    seed: int
    path: Path
    result: dict[str, Any]
    metrics: list[dict[str, Any]]

    @property
    def settings(self) -> dict[str, Any]:
        """Its training settings."""
        settings: dict[str, Any] = self.result["config"]["train"]
        return settings

    @property
    def protocol(self) -> str:
        """``test_flip`` where training flips images, the paper's protocol, and ``test`` otherwise."""
        return "test_flip" if self.result["test_flip"] else "test"

    def score(self, part: str) -> dict[str, Any]:
        """Accuracy, loss, n and passes of ``pruned`` or ``full`` by the run's protocol."""
        score: dict[str, Any] = self.result[self.protocol][part]
        return score


@dataclass
class Group:
    """The runs on one data set by one recipe: what may be compared.

    Attributes:
        name: as in the runs' folders, such as cifar100-fast.
        seeds: those below count in the tables; ensembles may have needed more runs of some kinds. None: all.
        runs: by kind, in the order of their seeds.
        failed: the runs of the last study that failed, with their errors.
    """

    name: str
    seeds: int | None = None
    runs: dict[str, list[FinishedRun]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def all_runs(self) -> list[FinishedRun]:
        """Every run, kind by kind."""
        return [run for kind in ORDER for run in self.runs.get(kind, ())]

    @property
    def some(self) -> FinishedRun:
        """A run to ask for what all have in common."""
        return self.all_runs[0]

    @property
    def data(self) -> str:
        """The data set's name."""
        name: str = self.some.result["config"]["data"]["name"]
        return name

    def compared(self, kind: str) -> list[FinishedRun]:
        """A kind's runs with the seeds that all kinds share."""
        return [run for run in self.runs.get(kind, ()) if self.seeds is None or run.seed < self.seeds]


def read_folder(out: str | Path) -> list[Group]:
    """All groups of a study's folder that have a finished run.

    Raises:
        ConfigError: where there is none.
    """
    folder = Path(out)
    notes = _read_notes(folder)
    groups: dict[str, Group] = {}
    for path in sorted((folder / "runs").glob("*")):
        found = parse_name(path.name)
        if found is None or not Run(path).finished:
            continue
        name, kind, seed = found
        note = notes.get(name, {})
        group = groups.setdefault(name, Group(name, note.get("seeds"), failed=note.get("failed", {})))
        run = FinishedRun(path.name, kind, seed, path, Run(path).read_result(), Run(path).read_metrics())
        group.runs.setdefault(kind, []).append(run)
    if not groups:
        raise ConfigError(f"{folder}: no finished run of a study in it; make one with `transnet reproduce --out`")
    for group in groups.values():
        for runs in group.runs.values():
            runs.sort(key=lambda run: run.seed)
    return list(groups.values())


def note_study(study: Study, failed: dict[str, str]) -> None:
    """Keep what the runs themselves do not know: how many seeds the tables compare, and what failed."""
    notes = _read_notes(Path(study.out))
    seeds = max(study.seeds, notes.get(study.group, {}).get("seeds", 0))
    notes[study.group] = {"seeds": seeds, "failed": failed}
    write_atomically(Path(study.out) / "study.json", json.dumps({"schema": 1, "groups": notes}, indent=1).encode())


def _read_notes(folder: Path) -> dict[str, Any]:
    path = folder / "study.json"
    if not path.exists():
        return {}
    try:
        notes: dict[str, Any] = json.loads(path.read_text())["groups"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not a study's notes ({error!r}); delete it to count every seed") from None
    return notes
