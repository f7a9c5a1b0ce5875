"""``transnet train``."""

import dataclasses
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated

from transnet.arguments import REQUIRED, argument
from transnet.cli.options import name_options, read
from transnet.console import counted, say
from transnet.errors import ConfigError
from transnet.runs.config import TrainConfig, read_config

COMMON = (
    "data", "out", "config", "model", "transforms", "recipe", "seed", "epochs", "batch_size", "lr", "weight_decay",
    "label_smoothing", "mixup", "cutmix", "distillation", "init", "pretrained", "image_size", "flip", "val_fraction",
    "train_fraction", "workers", "device", "evaluate_every", "resume",
)  # fmt: skip


@dataclass(frozen=True)
class Options(TrainConfig):  # noqa: D101 - the help is that of TrainConfig
    config: Annotated[str | None, argument(metavar="FILE")] = None
    """A run's config.json, whose settings become the defaults. DATA can then be left out."""


Options.__doc__ = f"{TrainConfig.__doc__}\n    --help lists the most used options, and --help-all all of them."


def main(arguments: Sequence[str]) -> int:
    """Train, and print the scores on the test set."""
    config = train_config(arguments)
    from transnet.cli.class_report import balanced_accuracy, classes_of, print_classes, print_notes, zero_recall_notes
    from transnet.cli.scores import print_scores
    from transnet.train.trainer import train

    first = os.environ.get("RANK", "0") == "0"  # one of torchrun's processes prints for all
    if first and "--tensorboard" in arguments and config.tensorboard and not find_spec("tensorboard"):
        say("no TensorBoard curves are written, because it is not installed: pip install tensorboard")
    result = train(config)
    if not first:
        return 0
    print(f"test set of {counted(result.test.full.n, 'image')}; trained in {result.train_seconds:.1f} s")
    print_scores(result.test, result.test_flip)
    print_classes(result.test, classes_of(result.test), "test")
    if val := result.val:
        several = len(val.heads) > 1
        pruned = f"{val.pruned.accuracy:.2%} pruned, " if val.pruned and several else ""
        full = f"{val.full.accuracy:.2%}{' with all heads' if several else ''}"
        print(f"validation split of {counted(val.full.n, 'image')}: {pruned}{full}")
        if classes := classes_of(val):
            print(balanced_accuracy(val, len(classes), "validation"))
            print_notes(zero_recall_notes(val, classes, "validation"))
    out = shlex.quote(config.out)
    say(f"the run is in {config.out}; what next: transnet evaluate, prune, predict or serve {out}")
    return 0


def train_config(arguments: Sequence[str]) -> TrainConfig:
    """Read the options; their defaults are those of a run's config.json, or of the recipe for the data.

    The defaults depend on three of the options, so a first parse finds these three.
    """
    name_options(Options)
    words = ["--help" if word in ("-h", "--help-all") else word for word in arguments]
    data, recipe, path = _selected(words)
    required: tuple[str, ...] = ("data", "out")
    if path is not None:
        base, required = read_config(path), ("out",)
    else:
        base = TrainConfig.for_data(data, "", recipe=recipe)
    defaults = {**vars(base), "config": None, "resume": False, **dict.fromkeys(required, REQUIRED)}
    shown = COMMON if {"-h", "--help"} & set(arguments) else ()
    settings = read(Options, "train", ["--help"] if "--help" in words else words, defaults=defaults, shown=shown)
    if settings.pop("config") is not None and settings["recipe"] != base.recipe:
        raise ConfigError("the settings come from `config`; leave one of the two out", field="recipe")
    return TrainConfig(**settings)


def _selected(words: Sequence[str]) -> tuple[str, str, str | None]:
    """Parse the arguments for ``data``, ``recipe`` and ``config``."""
    defaults = {field.name: field.default for field in dataclasses.fields(Options)} | {"data": "", "out": ""}
    without_help = [word for word in words if word != "--help"]
    try:
        found = read(Options, "train", without_help, defaults=defaults)
    except SystemExit:
        if len(without_help) == len(words):
            raise
        found = defaults  # the help is shown even if other arguments are wrong
    return found["data"], found["recipe"], found["config"]
