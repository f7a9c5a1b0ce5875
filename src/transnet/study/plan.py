"""The runs that a study needs, each with a folder of its own.

    OUT/runs/cifar100-fast-t2-s0        series, variant, seed

Planning the same study twice gives the same folders, so a finished run is never trained again, and more seeds are
only more folders. A run records its data's name and not its location, so a study can be continued with its finished
runs on another machine.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from transnet.errors import ConfigError
from transnet.runs.config import TrainConfig, differences
from transnet.runs.files import read_json, write_atomically
from transnet.runs.folder import Run
from transnet.runs.records import decode
from transnet.study.file import Comparison, Study


@dataclass(frozen=True)
class PlannedRun:
    """A run that a study needs.

    Attributes:
        name: its folder's name.
        kind: the variant's name.
        seed: its seed.
        config: its settings.
        data: where its data is on this machine.
        save_predictions: whether it leaves ``predictions.npz``.
    """

    name: str
    kind: str
    seed: int
    config: TrainConfig
    data: str
    save_predictions: bool = False

    @property
    def heads(self) -> int:
        """Training passes per image and epoch."""
        return len(self.config.names)

    @property
    def path(self) -> Path:
        """Its folder."""
        return Path(self.config.out)

    @property
    def done(self) -> bool:
        """Whether nothing is left to do. Predictions cannot be saved any more if the weights are gone."""
        run = Run(self.path)
        missing = self.save_predictions and run.model.exists() and not (self.path / "predictions.npz").exists()
        return run.finished and not missing


def plan_runs(study: Study, out: str | Path) -> list[PlannedRun]:
    """The study's runs, seed by seed so that a first table is complete early, the longest of each seed first.

    Raises:
        ConfigError: if the folder holds runs of these names, or a study of this name, with other settings.
    """
    if not study.data:
        raise ConfigError(f"{study.file} names no data; give it", field="data")
    runs = []
    for variant in study.variants.values():
        for seed in study.seeds_of(variant):
            name = f"{study.series}-{variant.name}-s{seed}"
            config = study.config(variant, seed, str(Path(out) / "runs" / name))
            runs.append(PlannedRun(name, variant.name, seed, config, study.data, study.save_predictions))
    for run in sorted(runs, key=lambda run: run.config.epochs):  # settings that differ are reported of the shortest
        _check_settings(run)
    _check_study(study, out)
    return sorted(runs, key=lambda run: (run.seed, -run.heads * run.config.epochs, run.kind))


def _check_settings(run: PlannedRun) -> None:
    folder = Run(run.path)
    if not folder.config.exists():
        return
    before = folder.settings().train
    if found := differences(before, replace(run.config, model=run.config.model or before.model)):
        raise ConfigError(
            f"{folder.path} was begun with other settings: {'; '.join(found)}; give another folder", field="out"
        )


# ---------------------------------------------------------------------------------------- what a folder's studies are


@dataclass(frozen=True)
class SeriesNote:
    """What ``study.json`` keeps of a series of runs, because the runs themselves do not show it.

    Attributes:
        failed: runs that failed when the study was last carried out.
        planned: the runs of all studies that share the series.
        variants: the settings of each, with any seed.
        compare: pairs of variants.
    """

    failed: tuple[str, ...] = ()
    planned: tuple[str, ...] = ()
    variants: dict[str, TrainConfig] = field(default_factory=dict)
    compare: tuple[Comparison, ...] = ()


@dataclass(frozen=True)
class _StudyNotes:
    groups: dict[str, SeriesNote]


def read_notes(out: str | Path) -> dict[str, SeriesNote]:
    """The notes in a study's folder, by series."""
    path = Path(out) / "study.json"
    return decode(_StudyNotes, read_json(path, ""), str(path)).groups if path.exists() else {}


@contextmanager
def folder_lock(out: str | Path) -> Iterator[None]:
    """Keep other processes from writing the same folder's notes or report meanwhile."""
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

    settings = {name: study.config(one, 0, "") for name, one in study.variants.items()}
    path = Path(out) / "study.json"
    (path.parent / "logs").mkdir(parents=True, exist_ok=True)
    with folder_lock(out):
        notes = read_notes(out)
        before = notes.get(study.series, SeriesNote())
        notes[study.series] = SeriesNote(
            failed=tuple(failed),
            planned=tuple(dict.fromkeys((*before.planned, *(run.name for run in runs)))),
            variants={**before.variants, **settings},
            compare=tuple(dict.fromkeys((*before.compare, *study.compare))),
        )
        content = msgspec.json.encode({"schema": 1, "groups": notes})
        write_atomically(path, msgspec.json.format(content, indent=1))


def unplanned(out: str | Path) -> list[str]:
    """Names of the folders among a study's runs that no study has planned, for example copied or renamed ones."""
    planned = {name for note in read_notes(out).values() for name in note.planned}
    folders = (path for path in (Path(out) / "runs").glob("*") if path.is_dir())
    return sorted(path.name for path in folders if planned and path.name not in planned)


def _check_study(study: Study, out: str | Path) -> None:
    """Refuse another study of the same name: its variants would be mixed up with those of the one before."""
    before = read_notes(out).get(study.series, SeriesNote()).variants
    for name, variant in study.variants.items():
        if name not in before:
            continue
        if found := differences(before[name], study.config(variant, 0, "")):
            raise ConfigError(
                f"{out} holds a study {study.series} with other settings of {name}: {'; '.join(found)}; "
                "give another folder, or rename the study file",
                field="out",
            )
