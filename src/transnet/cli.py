"""The command line: one verb, one function.

Nothing heavy is imported before a verb needs it: ``transnet --help`` answers at once.
"""

import dataclasses
import difflib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

VERBS = {
    "train": "train a classifier with one head per transform of the images",
    "evaluate": "measure finished runs: pruned, full, every head, ensembles",
    "demo": "base against TransNet on scikit-learn's digits, in under two minutes",
}

HELP = """usage: transnet VERB …

Image classifiers that generalise better at no cost at prediction time.

{verbs}

transnet VERB --help explains a verb. First steps:

  transnet demo
  transnet train cifar100 --transforms r0,r1 --out runs/t2
  transnet evaluate runs/t2
"""


def run(arguments: Sequence[str]) -> int:
    """Carry out a command; the exit status: 0 success, 2 a user's mistake, 1 anything else."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP.format(verbs="\n".join(f"  {verb:<10} {what}" for verb, what in VERBS.items())), end="")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from transnet import __version__

        print(f"transnet {__version__}")
        return 0
    verb, rest = arguments[0], arguments[1:]
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        print(f"transnet: unknown verb {verb!r}{hint} (known: {' '.join(VERBS)})", file=sys.stderr)
        return 2
    carry_out: Callable[[Sequence[str]], int] = globals()[f"_{verb}"]
    return _guarded(carry_out, rest)


def _guarded(carry_out: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """A user's mistake never ends in a traceback."""
    try:
        return carry_out(arguments)
    except (ValueError, FileNotFoundError) as error:
        return _fail(error, 2)
    except KeyboardInterrupt:
        return _fail("interrupted", 1)
    except (RuntimeError, OSError) as error:
        from transnet.train.checkpoint import CheckpointError
        from transnet.train.loop import TrainingError

        if isinstance(error, (CheckpointError, TrainingError, OSError)):
            return _fail(error, 1)
        raise


def _fail(error: Exception | str, status: int) -> int:
    print(f"transnet: {error}", file=sys.stderr)
    return status


def _train(arguments: Sequence[str]) -> int:
    import tyro

    from transnet.train.config import TrainConfig, from_dict

    config = tyro.cli(
        TrainConfig, prog="transnet train", args=_without(arguments, "--config"),
        default=from_dict(_defaults(arguments)), config=(tyro.conf.FlagConversionOff,) if False else (),
    )  # fmt: skip
    from transnet.train.interrupt import Stopped
    from transnet.train.loop import train

    try:
        result = train(config)
    except Stopped as stopped:
        return _fail(str(stopped), 1)
    _print_result(result)
    return 0


def _defaults(arguments: Sequence[str]) -> dict[str, Any]:
    """Where ``transnet train`` starts from: a run's config, or the recipe for the data set."""
    import tyro

    from transnet import recipes
    from transnet.train.config import read_config

    if path := _value(arguments, "--config"):
        return {**read_config(Path(path)), "out": tyro.MISSING, "resume": False}
    data = next((a for a in arguments if not a.startswith("-")), "")
    recipe = _value(arguments, "--recipe") or "fast"
    settings = recipes.settings(recipe, data) if recipe in recipes.NAMES else {}
    return {**settings, "data": tyro.MISSING, "out": tyro.MISSING}


def _value(arguments: Sequence[str], flag: str) -> str | None:
    for i, word in enumerate(arguments):
        if word.startswith(flag + "="):
            return word.partition("=")[2]
        if word == flag and i + 1 < len(arguments):
            return arguments[i + 1]
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


def _print_result(result: dict[str, Any]) -> None:
    names = ", ".join(head["name"] for head in result["test"]["heads"])
    print(f"heads {names}; test set of {result['test']['full']['n']:,} images")
    for title, view in (("plain", result["test"]), ("with flip", result["test_flip"])):
        if view:
            pruned = f"pruned {view['pruned']['accuracy']:.2%}, " if view["pruned"] else ""
            print(f"{title:<10} {pruned}full {view['full']['accuracy']:.2%}")
