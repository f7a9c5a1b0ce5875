"""``transnet demo``."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from transnet.arguments import argument
from transnet.cli.options import parse
from transnet.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Options:
    """Train base, T2 and T3 on scikit-learn's digits with few training images, and compare them."""

    out: str | None = None
    """Folder for the runs, to keep them. Finished runs are not trained again."""
    seeds: int = 3
    """Runs of each kind, with seeds 0…N−1."""
    train_fraction: float = 0.15
    """Fraction of the training images."""
    epochs: int = 60
    """Epochs of each run."""
    json: Annotated[str | None, argument(metavar="FILE")] = None
    """File for the figures of every run, besides the table."""


def main(arguments: Sequence[str]) -> int:
    """Train the demo's runs and print their table."""
    options = parse(Options, "demo", arguments)
    if options.json and (Path(options.json).is_dir() or not Path(options.json).absolute().parent.is_dir()):
        raise ConfigError(f"{options.json} cannot be written; give a file in an existing folder", field="json")
    from transnet.study.demo import demo

    summary = demo(
        Path(options.out) if options.out else None, seeds=options.seeds, train_fraction=options.train_fraction,
        epochs=options.epochs, command=_command(options),
    )  # fmt: skip
    if options.json:
        Path(options.json).write_text(json.dumps(dataclasses.asdict(summary), indent=1))
    return 0


def _command(options: Options) -> str:
    """The command that repeats it, wherever the files go."""
    given = {name: getattr(options, name) for name in ("seeds", "train_fraction", "epochs")}
    changed = {name: value for name, value in given.items() if value != getattr(Options, name)}
    return " ".join(["transnet demo", *(f"--{name.replace('_', '-')} {value}" for name, value in changed.items())])
