"""The baseline against two and three heads on scikit-learn's digits with few training images.

transnet demo
"""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from transnet.console import counted, say
from transnet.errors import OperationError
from transnet.study.execute import Settings, run_study
from transnet.study.file import read_study
from transnet.study.results import FinishedRun, read_runs
from transnet.study.statistics import difference, mean_and_error
from transnet.train.interrupt import Stopped

NAMES = {
    "base": "base", "base-x2": "base, 2× epochs", "t2": "T2", "base-x3": "base, 3× epochs", "t3": "T3",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A run's figures: the two accuracies, the generalisation score, and passes in training and per image."""

    kind: str
    seed: int
    pruned: float
    full: float
    generalization: float | None
    train_passes: int
    predict_passes: int


@dataclass(frozen=True)
class Summary:
    """The demo's figures, run by run, and how they were obtained."""

    command: str
    commit: str | None
    versions: dict[str, str]
    device: str
    train_images: int
    test_images: int
    rows: tuple[Row, ...]


def demo(out: Path | None, *, seeds: int, train_fraction: float, epochs: int, command: str) -> Summary:
    """Train every variant with every seed and print the table.

    Args:
        out: folder for the runs; None: a folder that is deleted afterwards. Finished runs in it are not trained again.
        seeds: runs of each variant.
        train_fraction: fraction of the training images.
        epochs: of each run.
        command: the command that repeats it.

    Raises:
        Stopped: after Ctrl-C; the message says whether the same command continues.
    """
    study = read_study("demo").changed(seeds=seeds, train={"train_fraction": train_fraction, "epochs": epochs})
    say(f"training {counted(seeds * len(NAMES), 'small network')} on digits")
    with tempfile.TemporaryDirectory() as scratch:
        folder = out or Path(scratch)
        outcome = run_study(study, Settings(str(folder)))
        if outcome.stopped and out:
            raise Stopped(f"stopped; everything is saved in {out}. The same command continues from here")
        if outcome.stopped:
            raise Stopped("stopped; nothing was kept. With `out` DIR the same command could continue")
        if outcome.failed:
            raise OperationError("; ".join(f"{name} failed: {error}" for name, error in outcome.failed.items()))
        (series,) = (one for one in read_runs(folder) if one.name == study.series)
    runs = [run for seed in range(seeds) for kind in NAMES for run in series.of(kind) if run.seed == seed]
    summary = _summary(runs, command)
    Console().print(_table(summary))
    for line in equal_compute(summary.rows):
        print(line)
    return summary


def equal_compute(rows: Sequence[Row]) -> list[str]:
    """The pruned networks against the baselines at equal training compute."""
    found = []
    for m in (2, 3):
        pruned, base = (
            [100 * row.pruned for row in rows if row.kind == kind] for kind in (f"T{m}", f"base, {m}× epochs")
        )
        if pruned and base:
            found.append(f"PT{m} against the baseline at equal training compute: {difference(pruned, base)}.")
    return found


def _summary(runs: Sequence[FinishedRun], command: str) -> Summary:
    first = runs[0].result
    return Summary(
        command=command,
        commit=first.commit,
        versions=first.versions,
        device=first.device,
        train_images=first.config.data.sizes.train,
        test_images=first.config.data.sizes.test,
        rows=tuple(
            Row(
                kind=NAMES[run.kind],
                seed=run.seed,
                pruned=run.score("pruned").accuracy,
                full=run.score("full").accuracy,
                generalization=run.result.generalization,
                train_passes=run.result.cost.train_passes,
                predict_passes=run.result.cost.predict_passes,
            )
            for run in runs
        ),
    )


def _table(summary: Summary) -> Table:
    n = len({row.seed for row in summary.rows})
    table = Table(
        title=f"digits, {summary.train_images} training images, {summary.test_images} test images, "
        + ("one seed" if n == 1 else f"mean ± standard error over {n} seeds")
    )
    for column in ("", "accuracy %", "test /\ntrain loss", "training\npasses", "passes\nper image"):
        table.add_column(column, justify="left" if not column else "right")
    for kind in NAMES.values():
        rows = [row for row in summary.rows if row.kind == kind]
        m, passes = rows[0].predict_passes, f"{rows[0].train_passes:,}"
        ratios = [row.generalization for row in rows if row.generalization is not None]
        ratio = _figure(ratios, "{:.1f}") if ratios else ""
        pruned, full = (_figure([100 * asdict(row)[part] for row in rows], "{:.2f}") for part in ("pruned", "full"))
        table.add_row(f"P{kind}, pruned" if m > 1 else kind, pruned, ratio, passes, "1")
        if m > 1:
            table.add_row(f"{kind}, all heads", full, "", passes, str(m))
    return table


def _figure(values: list[float], form: str) -> str:
    mean, error = mean_and_error(values)
    return form.format(mean) + (f" ± {form.format(error)}" if error is not None else "")
