"""The finished runs in a study's folder, as typed records by series (the study file) and kind (the variant)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from transnet.errors import FileError
from transnet.runs.config import TrainConfig
from transnet.runs.folder import Run
from transnet.runs.predictions import NAME, Predictions
from transnet.runs.records import EpochEntry, Result, Score
from transnet.study.file import Comparison, read_study
from transnet.study.plan import SeriesNote, read_notes
from transnet.study.statistics import Difference, difference

KINDS = tuple(read_study("kinds").variants)  # the paper's, and the baselines at equal training compute


@dataclass(frozen=True)
class FinishedRun:
    """A finished run of a study."""

    name: str  # of its folder: SERIES-KIND-sSEED
    kind: str  # the variant's name, such as t2
    seed: int
    path: Path
    result: Result
    metrics: list[EpochEntry]

    @property
    def settings(self) -> TrainConfig:
        """Its training settings."""
        return self.result.config.train

    @property
    def uses_flip(self) -> bool:
        """Whether the paper's protocol tests this run with flip TTA: it does if training flips images."""
        return self.result.test_flip is not None

    @property
    def has_weights(self) -> bool:
        """Whether its network can be loaded. Published results come without weights."""
        return Run(self.path).model.exists()

    def score(self, part: str, flip: bool | None = None) -> Score:
        """The test score of ``pruned`` or ``full``, by default with or without flip TTA as the paper tests this run."""
        scores = self.result.test_flip if (self.uses_flip if flip is None else flip) else self.result.test
        found = {"pruned": scores.pruned, "full": scores.full}[part] if scores else None
        if found is None:
            raise FileError(f"{Run(self.path).result_file} has no score of {part}{' with flip TTA' if flip else ''}")
        return found

    @cached_property
    def predictions(self) -> Predictions | None:
        """Its logits on the test images, if they were saved with these weights."""
        path = self.path / NAME
        found = Predictions.read(path) if path.exists() else None
        return found if found and found.model_sha256 == self.result.model_sha256 else None


@dataclass
class Series:
    """Runs that may be compared: the same data set and recipe, or variants of the same study file."""

    name: str  # the first part of the runs' names, such as cifar100-fast
    runs: dict[str, list[FinishedRun]] = field(default_factory=dict)  # by kind, in the order of their seeds
    failed: tuple[str, ...] = ()  # runs that failed when the study was last carried out
    compare: tuple[Comparison, ...] = ()  # as its study files name them

    @property
    def all_runs(self) -> list[FinishedRun]:
        """Every run, kind by kind: the paper's kinds first, then others by name."""
        kinds = sorted(self.runs, key=lambda kind: (KINDS.index(kind) if kind in KINDS else len(KINDS), kind))
        return [run for kind in kinds for run in self.runs[kind]]

    @property
    def first(self) -> FinishedRun:
        """The first run, for settings that all runs have in common."""
        return self.all_runs[0]

    @property
    def data(self) -> str:
        """The data set's name."""
        return self.first.result.config.data.name

    def of(self, kind: str) -> list[FinishedRun]:
        """All runs of a kind. Kinds may differ in their number of runs."""
        return self.runs.get(kind, [])


def read_runs(out: str | Path) -> list[Series]:
    """All series of a study's folder that have a finished run; a FileError if there is none."""
    notes = read_notes(out)
    named = [(*found, path) for path in (Path(out) / "runs").glob("*") if (found := parse_name(path.name, notes))]
    series: dict[str, Series] = {}
    for name, kind, seed, path in sorted(named):
        if Run(path).finished:
            note = notes.get(name, SeriesNote())
            one = series.setdefault(name, Series(name, failed=note.failed, compare=note.compare))
            run = FinishedRun(path.name, kind, seed, path, Run(path).result(), Run(path).metrics())
            one.runs.setdefault(kind, []).append(run)
    if not series:
        raise FileError(f"{out} holds no finished run of a study; `transnet reproduce` and `transnet study` make one")
    for one in series.values():
        first: dict[int | None, FinishedRun] = {}
        for run in one.all_runs:  # of each seed, which may have a subset of its own
            data = run.result.config.data
            if (other := first.setdefault(data.subset_seed, run)).result.config.data.fingerprint != data.fingerprint:
                problem = f"{other.name} and {run.name} were trained on different data"
                raise FileError(f"{problem}; train one of them in another folder")
    return list(series.values())


def parse_name(name: str, notes: Mapping[str, SeriesNote]) -> tuple[str, str, int] | None:
    """The series, kind and seed of a run's folder; None for a folder that is named otherwise.

    Both may contain hyphens, so the notes of the studies that planned the run decide.
    """
    stem, _, seed = name.rpartition("-s")
    known = (kind for kind in sorted(KINDS, key=len, reverse=True) if stem.endswith(f"-{kind}"))
    kind = next(known, stem.rpartition("-")[2])
    planned = {f"{series}-{kind}": (series, kind) for series, note in notes.items() for kind in note.variants}
    series, kind = planned.get(stem, (stem[: -len(kind) - 1], kind))
    return (series, kind, int(seed)) if series and kind and seed.isdecimal() else None


def comparisons(series: Series) -> Iterator[tuple[str, Difference]]:
    """For each ``[[compare]]`` of the series' study files, yield a title and the difference in points of accuracy."""
    for pair in series.compare:
        a, b = series.of(pair.a), series.of(pair.b)
        if a and b:
            several = max(len(runs[0].settings.names) for runs in (a, b)) > 1
            for part, note in (("pruned", ", pruned"), ("full", ", all heads")) if several else (("full", ""),):
                if all(run.result.test.pruned or part == "full" for run in a + b):  # no pruned network without r0
                    sides = [[100 * run.score(part).accuracy for run in runs] for runs in (a, b)]
                    yield f"{pair.a} − {pair.b}{note}", difference(*sides)
