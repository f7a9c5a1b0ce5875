"""``transnet train``."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated

from transnet.arguments import REQUIRED, argument
from transnet.cli.options import parse
from transnet.console import counted, say
from transnet.errors import ConfigError
from transnet.runs import own_transforms
from transnet.runs.config import TrainConfig, read_config

COMMON = (
    "data", "out", "config", "model", "transforms", "transform", "recipe", "seed", "epochs", "batch_size", "lr",
    "weight_decay", "label_smoothing", "mixup", "cutmix", "distillation", "init", "pretrained", "image_size", "flip",
    "val_fraction", "train_fraction", "device", "evaluate_every", "resume",
)  # fmt: skip


@dataclass(frozen=True)
class Options(TrainConfig):  # noqa: D101 - the help is that of TrainConfig
    config: Annotated[str | None, argument(metavar="FILE")] = None
    """A run's config.json, whose settings become the defaults. DATA can then be left out."""


Options.__doc__ = f"{TrainConfig.__doc__}\n    --help lists the most used options, and --help-all all of them."


def main(arguments: Sequence[str]) -> int:
    """Train, and print the scores on the test set."""
    config = train_config(arguments)
    from transnet.cli.scores import print_balance, print_classes, print_scores, zero_recall_notes
    from transnet.train.trainer import train

    first = os.environ.get("RANK", "0") == "0"  # one of torchrun's processes prints for all
    if first and "--tensorboard" in arguments and config.tensorboard and not find_spec("tensorboard"):
        say("no TensorBoard curves are written, because it is not installed: pip install tensorboard")
    result = train(config, set_threads=True)
    if not first:
        return 0
    print(f"test set of {counted(result.test.full.n, 'image')}; trained in {result.train_seconds:.1f} s")
    print_scores(result.test, result.test_flip)
    print_classes(result.test, (result.test.pruned or result.test.full).classes, "test")
    if val := result.val:
        several = len(val.heads) > 1
        pruned = f"{val.pruned.accuracy:.2%} pruned, " if val.pruned and several else ""
        full = f"{val.full.accuracy:.2%}{' with all heads' if several else ''}"
        print(f"validation split of {counted(val.full.n, 'image')}: {pruned}{full}")
        if classes := (val.pruned or val.full).classes:
            print_balance(val, classes, "validation", zero_recall_notes(val, classes, "validation"))
    out = shlex.quote(config.out)
    say(f"the run is in {config.out}; what next: transnet evaluate, prune, predict or serve {out}")
    return 0


def train_config(arguments: Sequence[str]) -> TrainConfig:
    """Read the options; their defaults are those of a run's config.json, or of the recipe for the data.

    The defaults depend on three of the options, so a first parse finds these three.
    """
    others = [word for word in arguments if word not in ("-h", "--help", "--help-all")]
    help_wanted = len(others) < len(arguments)
    selected = Options("", "")
    try:
        selected = parse(Options, "train", others, defaults=vars(selected))
    except (SystemExit, ConfigError):
        if not help_wanted:  # the help is shown even if other arguments are wrong
            raise
    base, required = TrainConfig.for_data(selected.data, "", recipe=selected.recipe), ["data", "out"]
    if selected.config is not None:
        base, required = read_config(selected.config), ["out"]
    fixed = {"config": None, "resume": False, "transform": ()}
    defaults = {**vars(base), **dict.fromkeys(required, REQUIRED), **fixed}
    if help_wanted:
        parse(Options, "train", ["--help"], defaults=defaults, shown=() if "--help-all" in arguments else COMMON)
    options = parse(Options, "train", others, defaults=defaults)
    if options.config is not None and options.recipe != base.recipe:
        raise ConfigError("the settings come from `config`; leave one of the two out", field="recipe")
    if options.config is not None:
        own_transforms.check_recorded(
            set(options.names) - set(own_transforms.parse(options.transform)), (), base.transform, options.config
        )
    return TrainConfig(**{name: value for name, value in vars(options).items() if name != "config"})
