"""``transnet reproduce``."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Literal

from transnet.arguments import Positional, argument
from transnet.cli.options import parse

Target = Literal["pruned", "full", "ablation", "ensembles", "generalization", "invariance", "distilled", "all"]


@dataclasses.dataclass(frozen=True)
class Options:
    """Train the runs behind a table or figure of the paper, and write the report: DIR/report.html.

    pruned: Table 2. full: Table 3. ablation: Table 4. ensembles: Fig. 3. generalization: Fig. 4. invariance: Figs. 5
    and 6. distilled: beyond the paper, what the pruned head gains from self-distillation. Runs are shared between
    them. Calling the command again continues where it stopped; more seeds train only the new ones.

    Example: transnet reproduce pruned --data cifar100 --seeds 3 --out reproduced
    """

    target: Annotated[Positional[Target], argument(metavar="TARGET")]
    """pruned, full, ablation, ensembles, generalization, invariance, all of these, or distilled."""
    data: str = "cifar100"
    """A data set's name, a folder or an .npz file, as for `transnet train`."""
    seeds: int = 3
    """Runs of each kind, with seeds 0…N−1. ensembles and all train at least four of base and T2."""
    epochs: int | None = None
    """Epochs of base; the baselines at equal training compute train 2, 3 and 4 times as long. None: the recipe's."""
    recipe: Literal["fast", "paper"] = "fast"
    """The recipe of all runs."""
    model: str | None = None
    """Backbone. None: the data set's default."""
    train_fraction: float = 1.0
    """Fraction of the training images to use, stratified by class."""
    out: Annotated[str, argument(metavar="DIR")] = "reproduced"
    """Folder of the study: runs/, logs/, figures/, report.html. Several data sets and recipes may share it."""
    on: Literal["here", "ray"] = "here"
    """here: processes of this machine. ray: a Ray cluster, with DIR on storage that all nodes share."""
    jobs: int | None = None
    """Runs at once on each GPU, or on the CPU if there is none. None: 1 per CPU core; 1 per GPU, or 2 if its memory
    suffices and NVIDIA's Multi-Process Service lets them compute side by side."""
    device: str = "auto"
    """cpu or cuda. auto: a GPU if there is one."""
    checkpoint_every: int = 1
    """Epochs between checkpoints: what a killed study loses at most. If an epoch takes under a second, saving after
    each costs a good part of the time: give 20."""
    evaluate_every: int = 1
    """Epochs between evaluations on the test set, for the learning curves alone. On a GPU they can take a tenth of the
    time; 0: at the end only, without curves."""


def main(arguments: Sequence[str]) -> int:
    """Carry out the study and print the path of its report."""
    options = parse(Options, "reproduce", arguments)
    from transnet.cli.study import carry_out
    from transnet.errors import ConfigError
    from transnet.study.file import read_study

    if options.jobs is not None and options.jobs < 1:
        raise ConfigError(f"{options.jobs} was given; at least 1 is needed", field="jobs")
    if options.on == "ray" and options.jobs and options.device == "cpu":
        raise ConfigError("on Ray a run on the CPU takes one core; leave it out, or choose a GPU", field="jobs")
    names = ("epochs", "recipe", "model", "train_fraction", "device", "checkpoint_every", "evaluate_every")
    train = {name: value for name in names if (value := getattr(options, name)) is not None}
    study = read_study(options.target).changed(data=options.data, seeds=options.seeds, train=train)
    return carry_out([(study, options.out)], on=options.on, jobs=options.jobs)
