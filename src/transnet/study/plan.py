"""What a table or figure needs: its runs, each with a folder of its own that all targets share.

    OUT/runs/cifar100-fast-t2-s0        data set, recipe, kind, seed

Planning the same study twice gives the same folders, so a finished run is never trained again, and more seeds are
only more folders. A run knows its data by name, not by place: a study can go on with them on another machine.
"""

import re
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal

from transnet.arguments import Positional, argument
from transnet.errors import ConfigError
from transnet.runs import recipes
from transnet.runs.config import TrainConfig, data_name, differences, from_dict

Target = Literal["pruned", "full", "ablation", "ensembles", "generalization", "invariance", "taught", "all"]


@dataclass(frozen=True)
class Kind:
    """A way to train: what it is called, pruned and with all its heads, and what differs from the base classifier."""

    pruned: str
    full: str
    transforms: str
    heads: Literal["separate", "shared"] = "separate"
    epochs: int = 1  # times the base's
    distillation: float = 0.0

    @property
    def cost(self) -> int:
        """Training passes, in those of the base."""
        return self.epochs * len(self.transforms.split(","))

    @property
    def title(self) -> str:
        """For a run, which is both."""
        return self.full if self.full == self.pruned else f"{self.full} / {self.pruned}"


KINDS = {
    "base": Kind("base", "base", "r0"),
    "t2": Kind("PT2", "T2", "r0,r1"),
    "t3": Kind("PT3", "T3", "r0,r1,r2"),
    "t4": Kind("PT4", "T4", "r0,r1,r2,r3"),
    "alg": Kind("Alg. only", "Alg. only", "r0,r1", heads="shared"),
    "arch": Kind("Arch. only", "Arch. only", "r0,r0"),
    # Equal compute: the base with as many training passes as T2, T3 and T4 take.
    **{f"base-x{m}": Kind(f"base, {m}× epochs", f"base, {m}× epochs", "r0", epochs=m) for m in (2, 3, 4)},
    # Beyond the paper: the identity head also learns what both say together.
    "t2-taught": Kind("PT2 taught", "T2 taught", "r0,r1", distillation=1.0),
}

BY_HEADS = ("base", "t2", "t3", "t4")
EQUAL = ("base-x2", "base-x3", "base-x4")
TARGETS: dict[str, tuple[str, ...]] = {
    "pruned": BY_HEADS + EQUAL,
    "full": BY_HEADS + EQUAL,
    "ablation": ("base", "alg", "arch", "t2", "base-x2"),
    "ensembles": BY_HEADS,
    "generalization": BY_HEADS + EQUAL,
    "invariance": BY_HEADS,
    "taught": ("base", "t2", "t2-taught", "base-x2"),
}
PAPER = tuple(target for target in TARGETS if target != "taught")
MEMBERS = 4  # the largest ensemble of Fig. 3: so many runs it needs of each kind whose networks join in one
MEMBERS_OF = {"base": "base", "PT2": "t2"}  # what the figure calls them, and their kind of run
_NAME = re.compile(rf"(?P<group>.+)-(?P<kind>{'|'.join(sorted(KINDS, key=len, reverse=True))})-s(?P<seed>\d+)")


@dataclass(frozen=True)
class Study:
    """Train what a table or figure of the paper needs, and write the report: DIR/report.html.

    pruned: Table 2. full: Table 3. ablation: Table 4. ensembles: Fig. 3. generalization: Fig. 4. invariance: Figs. 5
    and 6. taught: beyond the paper, what the head that is kept gains by learning from the others too (--distillation).
    Runs are shared between them. Calling it again goes on where it stopped; more seeds train only the new ones.

    Example: transnet reproduce pruned --data cifar100 --seeds 3 --out reproduced
    """

    target: Annotated[Positional[Target], argument(metavar="TARGET")]
    """pruned, full, ablation, ensembles, generalization, invariance, all of these, or taught."""
    data: str = "cifar100"
    """A data set's name, a folder or an .npz file, as for `transnet train`."""
    seeds: int = 3
    """Runs of each kind, seeds 0…N−1. Ensembles take four of base and T2, further seeds where weights are gone."""
    epochs: int | None = None
    """Of the base; the equal-compute base trains 2, 3 and 4 times as long. None: the recipe's."""
    recipe: Literal["fast", "paper"] = "fast"
    """Base and TransNet take the same."""
    model: str | None = None
    """Backbone. None: the data set's default."""
    train_fraction: float = 1.0
    """Share of the training images to use."""
    out: Annotated[str, argument(metavar="DIR")] = "reproduced"
    """Folder of the study: runs/, logs/, figures/, report.html. Several data sets and recipes may share it."""
    on: Literal["here", "ray"] = "here"
    """here: processes of this machine. ray: a Ray cluster, with DIR on storage that all nodes share."""
    jobs: int | None = None
    """Runs at once on each GPU, or on the CPU where there is none. None: 1 per CPU core; 1 per GPU, 2 where its memory
    suffices and NVIDIA's Multi-Process Service lets them compute side by side."""
    device: str = "auto"
    """cpu or cuda. auto: a GPU where there is one."""
    checkpoint_every: int = 1
    """Epochs between checkpoints: what a killed study loses at most. Where an epoch takes under a second, saving after
    each costs a good part of the time: take 20."""
    evaluate_every: int = 1
    """Epochs between looks at the test set, for the learning curves alone. On a GPU looks after every epoch can take a
    tenth of the time; 0: at the end only, without curves."""

    def __post_init__(self) -> None:
        for name in ("seeds", "epochs", "jobs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{value} was given; at least 1 is needed", field=name)
        if self.on == "ray" and self.jobs and self.device == "cpu":
            raise ConfigError(
                "on Ray a run on the CPU takes one core; leave it out, or give `device` cuda", field="jobs"
            )

    @property
    def group(self) -> str:
        """What the study's runs have in common, as the first part of their names."""
        name = data_name(self.data).removesuffix(".npz")
        return re.sub(r"[^A-Za-z0-9_.]+", "_", name) + f"-{self.recipe}"

    @property
    def targets(self) -> tuple[str, ...]:
        """The tables and figures asked for."""
        return PAPER if self.target == "all" else (self.target,)


@dataclass(frozen=True)
class PlannedRun:
    """A run that a study needs."""

    name: str
    kind: str
    seed: int
    config: TrainConfig
    data: str  # where it lies here

    @property
    def heads(self) -> int:
        """Passes that an image takes in training."""
        return len(self.config.transforms.split(","))


def plan(study: Study) -> list[PlannedRun]:
    """The study's runs, seed by seed so that a first table stands early, the longest of each seed first.

    Raises:
        ConfigError: where the folder holds runs of that name with other settings.
    """
    wanted = {(seed, kind) for target in study.targets for kind in TARGETS[target] for seed in range(study.seeds)}
    if "ensembles" in study.targets:
        wanted |= {(seed, kind) for seed in _members(study) for kind in MEMBERS_OF.values()}
    order = sorted(wanted, key=lambda run: (run[0], -KINDS[run[1]].cost, run[1]))
    runs = [
        PlannedRun(_name(study, kind, seed), kind, seed, _config(study, kind, seed), study.data) for seed, kind in order
    ]
    for run in runs:
        _check_settings(run)
    return runs


def _name(study: Study, kind: str, seed: int) -> str:
    return f"{study.group}-{kind}-s{seed}"


def _members(study: Study) -> range:
    """The seeds of the networks that join in ensembles: the first four whose outputs can be had, or were averaged.

    Of a study in stretches, runs may be finished whose weights are gone and which nobody asked before.
    """
    from transnet.report.measurement_cache import was_measured
    from transnet.study.answers import can_answer

    runs = Path(study.out) / "runs"
    for first in count(0, MEMBERS):
        seeds = range(first, first + MEMBERS)
        names = {curve: [_name(study, kind, seed) for seed in seeds] for curve, kind in MEMBERS_OF.items()}
        if all(
            was_measured(Path(study.out), study.group, curve, members) or all(can_answer(runs / one) for one in members)
            for curve, members in names.items()
        ):
            break
    return seeds


def parse_name(name: str) -> tuple[str, str, int] | None:
    """A run folder's group, kind and seed; None for a folder that no study made."""
    found = _NAME.fullmatch(name)
    return (found["group"], found["kind"], int(found["seed"])) if found else None


def _config(study: Study, kind: str, seed: int) -> TrainConfig:
    settings: dict[str, Any] = recipes.settings(study.recipe, study.data)
    epochs = study.epochs or settings.get("epochs") or TrainConfig.epochs
    how = KINDS[kind]
    out = Path(study.out) / "runs" / _name(study, kind, seed)
    return from_dict(
        {
            **settings,
            "data": data_name(study.data),
            "out": str(out),
            "model": study.model,
            "transforms": how.transforms,
            "heads": how.heads,
            "distillation": how.distillation,
            "seed": seed,
            "epochs": epochs * how.epochs,
            "train_fraction": study.train_fraction,
            "device": study.device,
            "checkpoint_every": study.checkpoint_every,
            "evaluate_every": study.evaluate_every,
            "tensorboard": False,
            "resume": True,
        }
    )


def _check_settings(run: PlannedRun) -> None:
    """Say it before anything is trained: one folder holds one set of settings per data set and recipe."""
    from transnet.runs.folder import Run

    folder = Run(run.config.out)
    if not folder.config.exists():
        return
    before, now = folder.settings().train, run.config
    now = replace(now, model=now.model or before.model)
    times = KINDS[run.kind].epochs
    if before.epochs % times == 0:  # in the units that the user gives: epochs of the baseline
        before, now = (replace(settings, epochs=settings.epochs // times) for settings in (before, now))
    if found := differences(before, now):
        raise ConfigError(
            f"{folder.path} was begun with other settings: {'; '.join(found)}; give another `out`", field="out"
        )
