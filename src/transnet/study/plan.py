"""The runs that a study needs, each with a folder of its own.

    OUT/runs/cifar100-fast-t2-s0        series, variant, seed

Planning the same study twice gives the same folders, so a finished run is never trained again, and more seeds are
only more folders. A run records its data's name and not its location, so a study can be continued with its finished
runs on another machine.
"""

import statistics
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from transnet.errors import ConfigError
from transnet.runs.config import TrainConfig, differences
from transnet.runs.files import read_json, write_atomically
from transnet.runs.folder import Run
from transnet.runs.records import decode
from transnet.study.file import Comparison, Study, Variant


@dataclass(frozen=True)
class PlannedRun:
    """A run that a study needs."""

    name: str  # of its folder
    kind: str  # the variant's name
    seed: int
    config: TrainConfig
    data: str  # where its data is on this machine
    save_predictions: bool = False  # whether it writes ``predictions.npz``

    @property
    def heads(self) -> int:
        """The number of heads: the training passes per image in one epoch."""
        return len(self.config.names)

    @property
    def passes_per_image(self) -> int:
        """Training passes per image, in all epochs."""
        return self.heads * self.config.epochs

    @property
    def path(self) -> Path:
        """Its folder."""
        return Path(self.config.out)

    @property
    def epochs_done(self) -> int:
        """Epochs that it has written to ``metrics.jsonl``."""
        metrics = Run(self.path).metrics_file
        return min(metrics.read_bytes().count(b"\n"), self.config.epochs) if metrics.exists() else 0

    @property
    def done(self) -> bool:
        """Whether nothing is left to do. Missing predictions do not count if the weights are gone."""
        run = Run(self.path)
        missing = self.save_predictions and run.model.exists() and not (self.path / "predictions.npz").exists()
        return run.finished and not missing


def plan_runs(study: Study, out: str | Path) -> list[PlannedRun]:
    """The study's runs, seed by seed so that a first table is complete early, the longest of each seed first."""
    if not study.data:
        raise ConfigError(f"{study.file} names no data; give it", field="data")
    runs = []
    for variant in decided(study, out).variants.values():
        for seed in variant.seeds or study.seeds:
            name = f"{study.series}-{variant.name}-s{seed}"
            config = study.config(variant, seed, str(Path(out) / "runs" / name))
            runs.append(PlannedRun(name, variant.name, seed, config, study.data, study.save_predictions))
    # Another study of this series may have planned the same variants with other settings, without running them all.
    planned = read_notes(out).get(study.series, SeriesNote()).variants
    for run in sorted(runs, key=lambda run: run.config.epochs):  # an error names the shortest run
        if Run(run.path).config.exists():
            before = Run(run.path).settings().train
            _check_same(str(run.path), before, replace(run.config, model=run.config.model or before.model))
        if run.kind in planned:
            _check_same(f"{out}: {study.series}-{run.kind}", replace(planned[run.kind], seed=run.seed), run.config)
    return sorted(runs, key=lambda run: (run.seed, -run.passes_per_image, run.kind))


def decided(study: Study, out: str | Path) -> Study:
    """The study with the options of each ``best_of`` filled in. A variant is left out until that is possible."""
    variants = {name: _with_best(study, one, out) for name, one in study.variants.items()}
    return replace(study, variants={name: one for name, one in variants.items() if one})


def _with_best(study: Study, variant: Variant, out: str | Path) -> Variant | None:
    if variant.best_of is None:
        return variant
    runs = plan_runs(replace(variant.best_of, data=study.data), out)
    if not runs or not all(Run(run.path).finished for run in runs):
        return None
    accuracies: dict[str, list[float]] = {}
    for run in runs:
        result = Run(run.path).result()
        val = result.val_flip or result.val
        assert val is not None, f"{run.path} has no validation split"
        accuracies.setdefault(run.kind, []).append((val.pruned or val.full).accuracy)
    best = variant.best_of.variants[max(accuracies, key=lambda kind: statistics.fmean(accuracies[kind]))]
    return replace(variant, options={**best.options, **variant.options}, best_of=None)


def _check_same(what: str, before: TrainConfig, now: TrainConfig) -> None:
    if found := differences(before, now):
        raise ConfigError(
            f"{what} was begun with other settings: {'; '.join(found)}; give another folder, or rename the study file",
            field="out",
        )


@dataclass(frozen=True)
class SeriesNote:
    """A series in ``study.json``: what cannot be read from the folders of its runs."""

    failed: tuple[str, ...] = ()  # runs that failed when the study was last carried out
    planned: tuple[str, ...] = ()  # the runs of all studies that share the series
    variants: dict[str, TrainConfig] = field(default_factory=dict)  # the settings of each; their seed means nothing
    compare: tuple[Comparison, ...] = ()


@dataclass(frozen=True)
class _StudyNotes:
    groups: dict[str, SeriesNote]  # by series
    schema: int = 1


def read_notes(out: str | Path) -> dict[str, SeriesNote]:
    """The notes in a study's folder, by series."""
    path = Path(out) / "study.json"
    return decode(_StudyNotes, read_json(path, ""), str(path)).groups if path.exists() else {}


@contextmanager
def folder_lock(out: str | Path) -> Iterator[None]:
    """Keep other processes from writing the folder's notes or report within the block."""
    from filelock import FileLock

    lock = FileLock(Path(out) / "logs" / "study.lock")
    with suppress(NotImplementedError, OSError):  # a file system without locks
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def write_notes(study: Study, runs: Sequence[PlannedRun], out: str | Path, failed: Collection[str]) -> None:
    """Add a study to its folder's notes."""
    import msgspec

    settings = {name: study.config(one, 0, "") for name, one in decided(study, out).variants.items()}
    (Path(out) / "logs").mkdir(parents=True, exist_ok=True)
    with folder_lock(out):
        notes = read_notes(out)
        before = notes.get(study.series, SeriesNote())
        notes[study.series] = SeriesNote(
            failed=tuple(failed),
            planned=tuple(dict.fromkeys((*before.planned, *(run.name for run in runs)))),
            variants={**before.variants, **settings},
            compare=tuple(dict.fromkeys((*before.compare, *study.compare))),
        )
        content = msgspec.json.encode(_StudyNotes(notes))
        write_atomically(Path(out) / "study.json", msgspec.json.format(content, indent=1))


def unplanned(out: str | Path) -> list[str]:
    """Names of the folders among a study's runs that no study has planned, for example copied or renamed ones."""
    planned = {name for note in read_notes(out).values() for name in note.planned}
    folders = (path for path in (Path(out) / "runs").glob("*") if path.is_dir())
    return sorted(path.name for path in folders if planned and path.name not in planned)
