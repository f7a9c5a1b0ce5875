"""``transnet demo``."""

import dataclasses
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from transnet.arguments import argument
from transnet.cli.options import parse
from transnet.console import counted, print_table, say
from transnet.errors import ConfigError, OperationError

if TYPE_CHECKING:
    from transnet.study.results import FinishedRun

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
    """Train the demo's runs and print their table."""
    options = parse(Options, "demo", arguments)
    if options.json and (Path(options.json).is_dir() or not Path(options.json).absolute().parent.is_dir()):
        raise ConfigError(f"{options.json} cannot be written; give a file in an existing folder", field="json")
    with tempfile.TemporaryDirectory() as scratch:
        runs = _train(options, options.out or scratch)
    _compare(runs)
    if options.json:
        Path(options.json).write_text(json.dumps(_figures(options, runs), indent=1))
    return 0


def _train(options: Options, out: str) -> "dict[str, list[FinishedRun]]":
    """Train every variant with every seed that is not in the folder yet, and return all runs by variant."""
    from transnet.study.execute import run_study
    from transnet.study.file import read_study
    from transnet.study.results import read_runs
    from transnet.train.interrupt import Stopped

    given = {"train_fraction": options.train_fraction, "epochs": options.epochs}
    study = read_study("demo").changed(seeds=options.seeds, train=given)
    say(f"training {counted(options.seeds * len(_NAMES), 'small network')} on digits")
    outcome = run_study(study, out)
    if outcome.stopped and options.out:
        raise Stopped(f"stopped; everything is saved in {out}. The same command continues from here")
    if outcome.stopped:
        raise Stopped("stopped; nothing was kept. With `out` DIR the same command could continue")
    if outcome.failed:
        raise OperationError("; ".join(f"{name} failed: {error}" for name, error in outcome.failed.items()))
    (series,) = (one for one in read_runs(out) if one.name == study.series)
    return {kind: [run for run in series.of(kind) if run.seed < options.seeds] for kind in _NAMES}


def _compare(runs: "Mapping[str, list[FinishedRun]]") -> None:
    """Print a table of all variants, and the pruned networks against the baselines at equal training compute."""
    from transnet.report.table_format import mean_of
    from transnet.study.statistics import difference

    accuracies = {
        (kind, part): [100 * run.score(part).accuracy for run in found]
        for kind, found in runs.items()
        for part in ("pruned", "full")
    }
    rows = []
    for kind, name in _NAMES.items():
        cost = runs[kind][0].result.cost
        ratio = mean_of([found for run in runs[kind] if (found := run.result.generalization) is not None], ".1f").text
        pruned, full, passes = (
            *(mean_of(accuracies[kind, p]).text for p in ("pruned", "full")),
            f"{cost.train_passes:,}",
        )
        if cost.predict_passes == 1:
            rows.append((name, pruned, ratio, passes, "1"))
        else:
            rows.append((f"P{name}, pruned", pruned, ratio, passes, "1"))
            rows.append((f"{name}, all heads", full, "", passes, str(cost.predict_passes)))
    sizes, n = runs["base"][0].result.config.data.sizes, len(runs["base"])
    about = "one seed" if n == 1 else f"mean ± standard error over {n} seeds"
    columns = ("", "accuracy %", "test /\ntrain loss", "training\npasses", "passes\nper image")
    print_table(columns, rows, f"digits, {sizes.train} training images, {sizes.test} test images, {about}")
    for m in (2, 3):
        gap = difference(accuracies[f"t{m}", "pruned"], accuracies[f"base-x{m}", "pruned"])
        print(f"PT{m} against the baseline at equal training compute: {gap}.")


def _figures(options: Options, runs: "Mapping[str, list[FinishedRun]]") -> dict[str, object]:
    """The content of the JSON file."""
    changed = {name: getattr(options, name) for name in ("seeds", "train_fraction", "epochs")}
    words = [
        f"--{name.replace('_', '-')} {value}" for name, value in changed.items() if value != getattr(Options, name)
    ]
    first = runs["base"][0].result
    return {
        "command": " ".join(["transnet demo", *words]),  # wherever the files go
        "commit": first.commit,
        "versions": first.versions,
        "device": first.device,
        "train_images": first.config.data.sizes.train,
        "test_images": first.config.data.sizes.test,
        "rows": [
            {
                "kind": name,
                "seed": seed,
                "pruned": runs[kind][seed].score("pruned").accuracy,
                "full": runs[kind][seed].score("full").accuracy,
                "generalization": runs[kind][seed].result.generalization,
                "train_passes": runs[kind][seed].result.cost.train_passes,
                "predict_passes": runs[kind][seed].result.cost.predict_passes,
            }
            for seed in range(len(runs["base"]))
            for kind, name in _NAMES.items()
        ],
    }
