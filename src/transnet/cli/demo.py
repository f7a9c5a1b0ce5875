"""``transnet demo``."""

import dataclasses
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from transnet.arguments import argument
from transnet.cli.options import parse
from transnet.console import counted, print_table, say
from transnet.errors import ConfigError, OperationError

if TYPE_CHECKING:
    from transnet.study.results import Series

_NAMES = {"base": "base", "base-x2": "base, 2× epochs", "t2": "T2", "base-x3": "base, 3× epochs", "t3": "T3"}


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
    """Train the demo's runs, and print a table of them and the differences at equal training compute."""
    options = parse(Options, "demo", arguments)
    if options.json and (Path(options.json).is_dir() or not Path(options.json).absolute().parent.is_dir()):
        raise ConfigError(f"{options.json} cannot be written; give a file in an existing folder", field="json")
    from transnet.report.tables import accuracies
    from transnet.study.execute import run_study
    from transnet.study.file import read_study
    from transnet.study.results import read_runs
    from transnet.study.statistics import difference
    from transnet.train.interrupt import Stopped

    train = {"train_fraction": options.train_fraction, "epochs": options.epochs}
    study = read_study("demo").changed(seeds=options.seeds, train=train)
    say(f"training {counted(options.seeds * len(study.variants), 'small network')} on digits")
    with tempfile.TemporaryDirectory() as scratch:
        out = options.out or scratch
        outcome = run_study(study, out)
        if outcome.stopped and options.out:
            raise Stopped(f"stopped; everything is saved in {out}. The same command continues from here")
        if outcome.stopped:
            raise Stopped("stopped; nothing was kept. With `out` DIR the same command could continue")
        if outcome.failed:
            raise OperationError("; ".join(f"{name} failed: {error}" for name, error in outcome.failed.items()))
        (series,) = (one for one in read_runs(out) if one.name == study.series)
    series.runs = {kind: [run for run in series.of(kind) if run.seed < options.seeds] for kind in _NAMES}
    sizes, n = series.first.result.config.data.sizes, len(series.of("base"))
    about = "one seed" if n == 1 else f"mean ± standard error over {n} seeds"
    print_table(
        ("", "accuracy %", "test /\ntrain loss", "training\npasses", "passes\nper image"),
        _table(series),
        f"digits, {sizes.train} training images, {sizes.test} test images, {about}",
    )
    for m in (2, 3):
        gap = difference(*(accuracies(series.of(kind), "pruned") for kind in (f"t{m}", f"base-x{m}")))
        print(f"PT{m} against the baseline at equal training compute: {gap}.")
    if options.json:
        Path(options.json).write_text(json.dumps(_figures(options, series), indent=1))
    return 0


def _table(series: "Series") -> Iterator[tuple[str, ...]]:
    from transnet.report.table_format import mean_of
    from transnet.report.tables import accuracies

    for kind, name in _NAMES.items():
        runs = series.of(kind)
        cost = runs[0].result.cost
        pruned, full = (mean_of(accuracies(runs, part)).text for part in ("pruned", "full"))
        ratio = mean_of([found for run in runs if (found := run.result.generalization) is not None], ".1f").text
        yield name if cost.predict_passes == 1 else f"P{name}, pruned", pruned, ratio, f"{cost.train_passes:,}", "1"
        if cost.predict_passes > 1:
            yield f"{name}, all heads", full, "", f"{cost.train_passes:,}", str(cost.predict_passes)


def _figures(options: Options, series: "Series") -> dict[str, object]:
    """The content of the JSON file."""
    given = {name: getattr(options, name) for name in ("seeds", "train_fraction", "epochs")}
    changed = {name: value for name, value in given.items() if value != getattr(Options, name)}
    words = (f"--{name.replace('_', '-')} {value}" for name, value in changed.items())
    rows = [
        {
            "kind": _NAMES[run.kind], "seed": run.seed, "pruned": run.score("pruned").accuracy,
            "full": run.score("full").accuracy, "generalization": run.result.generalization,
            "train_passes": run.result.cost.train_passes, "predict_passes": run.result.cost.predict_passes,
        }
        for kind in _NAMES for run in series.of(kind)
    ]  # fmt: skip
    first = series.first.result
    return {
        "command": " ".join(["transnet demo", *words]),  # wherever the files go
        "commit": first.commit, "versions": first.versions, "device": first.device,
        "train_images": first.config.data.sizes.train, "test_images": first.config.data.sizes.test, "rows": rows,
    }  # fmt: skip
