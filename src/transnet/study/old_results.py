"""The finished runs of a study's folder, by what they have in common, by kind and by seed."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transnet.errors import ConfigError
from transnet.runs.files import write_atomically
from transnet.runs.folder import Run
from transnet.runs.records import encode
from transnet.study.plan import KINDS, Study, parse_name

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
    def mark(self) -> str:
        """What sets its weights apart from those of any other run, whether they are there or not."""
        mark: str = self.result["model_sha256"]
        return mark

    @property
    def has_weights(self) -> bool:
        """Whether its network can be loaded: results may be kept without."""
        return Run(self.path).model.exists()

    @property
    def at_once(self) -> int:
        """Runs that shared its device: what it took is not what it takes alone."""
        number: int = self.result.get("at_once", 1)
        return number

    @property
    def protocol(self) -> str:
        """``test_flip`` where training flips images, the paper's protocol, and ``test`` otherwise."""
        return "test_flip" if self.result["test_flip"] else "test"

    def score(self, part: str, protocol: str | None = None) -> dict[str, Any]:
        """Accuracy, loss, n and passes of ``pruned`` or ``full``, by the run's protocol where none is given."""
        score: dict[str, Any] = self.result[protocol or self.protocol][part]
        return score


@dataclass
class Group:
    """The runs on one data set by one recipe: what may be compared.

    Attributes:
        name: as in the runs' folders, such as cifar100-fast.
        runs: by kind, in the order of their seeds.
        failed: the runs of the last study that failed.
    """

    name: str
    runs: dict[str, list[FinishedRun]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

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

    def of(self, kind: str) -> list[FinishedRun]:
        """All runs of a kind. Their number may differ from another kind's: ensembles need more of some."""
        return self.runs.get(kind, [])


def read_folder(out: str | Path) -> list[Group]:
    """All groups of a study's folder that have a finished run.

    Raises:
        ConfigError: where there is none, or runs that would be compared saw different data.
    """
    folder = Path(out)
    notes = _read_notes(folder)
    groups: dict[str, Group] = {}
    for path in sorted((folder / "runs").glob("*")):
        found = parse_name(path.name)
        if found is None or not Run(path).finished:
            continue
        name, kind, seed = found
        group = groups.setdefault(name, Group(name, failed=list(notes.get(name, {}).get("failed", ()))))
        result = encode(Run(path).result())
        run = FinishedRun(path.name, kind, seed, path, result, [encode(entry) for entry in Run(path).metrics()])
        group.runs.setdefault(kind, []).append(run)
    if not groups:
        raise ConfigError(f"{folder}: no finished run of a study in it; make one with `transnet reproduce --out`")
    for group in groups.values():
        for runs in group.runs.values():
            runs.sort(key=lambda run: run.seed)
        _check_data(group)
    return list(groups.values())


def _check_data(group: Group) -> None:
    seen = {run.result["config"]["data"]["fingerprint"]: run.name for run in group.all_runs}
    if len(seen) > 1:
        one, other, *_ = seen.values()
        raise ConfigError(f"{one} and {other} saw different data; train one of them in another folder")


def note_study(study: Study, failed: Iterable[str]) -> None:
    """Keep what the runs themselves do not know: what failed."""
    notes = _read_notes(Path(study.out))
    notes[study.group] = {"failed": list(failed)}
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
