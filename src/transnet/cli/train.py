"""``transnet train``."""

import dataclasses
import os
import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from transnet.cli.options import checked

if TYPE_CHECKING:
    from transnet.runs.config import TrainConfig


def run(arguments: Sequence[str]) -> int:
    """Train, and print the scores on the test set."""
    config = train_config(arguments)
    from transnet.console import counted, say
    from transnet.runs.records import encode
    from transnet.train.class_report import balanced_accuracy, classes_of, print_classes, print_notes, zero_recall_notes
    from transnet.train.progress import print_scores
    from transnet.train.trainer import train

    speaks = os.environ.get("RANK", "0") == "0"  # one of torchrun's processes, for all
    if speaks and "--tensorboard" in arguments and config.tensorboard and not find_spec("tensorboard"):
        say("--tensorboard: TensorBoard is not installed, so no curves are written for it; pip install tensorboard")
    result = train(config)
    if speaks:
        print(f"test set of {counted(result.test.full.n, 'image')}; trained in {result.train_seconds:.1f} s")
        test = encode(result.test)
        print_scores(test, encode(result.test_flip) if result.test_flip else None)
        print_classes(test, classes_of(test), "test")
        if result.val:
            val, several = encode(result.val), len(result.val.heads) > 1
            pruned = f"{result.val.pruned.accuracy:.2%} pruned, " if result.val.pruned and several else ""
            full = f"{result.val.full.accuracy:.2%}{' with all heads' if several else ''}"
            print(f"validation split of {counted(result.val.full.n, 'image')}: {pruned}{full}")
            if classes := classes_of(val):
                print(balanced_accuracy(val, len(classes), "validation"))
                print_notes(zero_recall_notes(val, classes, "validation"))
        out = shlex.quote(config.out)
        say(f"{config.out} holds the run; what next: transnet evaluate, prune, predict or serve {out}")
    return 0


def train_config(arguments: Sequence[str]) -> "TrainConfig":
    """The options over their defaults: those of a run's config, or of the recipe for the data set."""
    from transnet.errors import ConfigError
    from transnet.runs.config import TrainConfig, configured, from_dict, read_config

    words = _without(arguments, "--config")

    def parsed(default: TrainConfig) -> TrainConfig:
        return checked(TrainConfig, "transnet train", words, default=default)

    if (path := _value(arguments, "--config")) is not None:
        if not path:
            raise ConfigError("--config: none given; a run's config.json is needed")
        if _value(arguments, "--recipe"):
            raise ConfigError("--recipe: a run's --config has its settings already; leave one of the two out")
        return parsed(from_dict({**read_config(Path(path)), "out": tyro.MISSING, "resume": False}))

    def with_defaults_of(data: str, recipe: str) -> TrainConfig:
        return parsed(dataclasses.replace(configured(data, "", recipe=recipe), data=tyro.MISSING, out=tyro.MISSING))

    # Which defaults hold depends on two of the options: they are read first.
    if {"-h", "--help"} & set(words):
        return with_defaults_of(words[0], _value(arguments, "--recipe") or "fast")
    first = parsed(configured(tyro.MISSING, tyro.MISSING))
    return with_defaults_of(first.data, first.recipe)


def _value(arguments: Sequence[str], flag: str) -> str | None:
    for i, word in enumerate(arguments):
        if word.startswith(flag + "="):
            return word.partition("=")[2]
        if word == flag:
            return arguments[i + 1] if i + 1 < len(arguments) else ""
    return None


def _without(arguments: Sequence[str], flag: str) -> list[str]:
    kept, skip = [], False
    for word in arguments:
        if skip:
            skip = False
        elif word == flag:
            skip = True
        elif not word.startswith(flag + "="):
            kept.append(word)
    return kept
