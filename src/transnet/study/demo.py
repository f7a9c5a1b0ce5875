"""Base against TransNet on scikit-learn's digits with few training images: the same path as every other run, small.

transnet demo
"""

import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from transnet.console import counted, say
from transnet.runs.config import TrainConfig
from transnet.runs.records import encode
from transnet.study.plan import KINDS as STUDIED
from transnet.study.statistics import difference, mean_and_error
from transnet.train.interrupt import Stopped
from transnet.train.trainer import train

# A gain is held against base trained for as many passes.
KINDS = tuple(STUDIED[kind] for kind in ("base", "base-x2", "t2", "base-x3", "t3"))


def demo(out: Path | None, *, seeds: int, train_fraction: float, epochs: int) -> list[dict[str, Any]]:
    """Train every kind with every seed and print the table, and what it says.

    Args:
        out: where the runs are kept; a folder that is deleted afterwards where it is None. Runs that are there and
            finished are not trained again.
        seeds: runs of each kind.
        train_fraction: share of the training images.
        epochs: of each run.

    Raises:
        Stopped: after Ctrl-C; the message says whether the same command goes on.
    """
    import torch

    # These networks are so small that a second thread only waits.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            rows = _runs(out or Path(scratch), seeds, train_fraction, epochs)
    except (Stopped, KeyboardInterrupt):  # the runs' own message names a folder that may be gone
        if out:
            raise Stopped(f"stopped; everything is saved in {out}. The same command goes on from here") from None
        raise Stopped("stopped; nothing was kept. With --out DIR the same command could go on") from None
    finally:
        torch.set_num_threads(threads)
    console = Console()
    console.print(_table(rows))
    console.print(equal_passes(_figures(rows)), highlight=False)
    return rows


def _runs(folder: Path, seeds: int, train_fraction: float, epochs: int) -> list[dict[str, Any]]:
    rows = []
    console = Console(stderr=True)
    if not console.is_terminal:  # where there is no bar
        say(f"training {counted(len(KINDS) * seeds, 'small network')} on digits")
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"),
        TimeRemainingColumn(), console=console, transient=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task("training", total=len(KINDS) * seeds)
        for seed in range(seeds):
            for kind in KINDS:
                bar.update(task, description=f"training {kind.full}, seed {seed}")
                out = folder / f"{kind.transforms.replace(',', '-')}-{kind.epochs * epochs}-{seed}"
                result = train(_config(out, kind.transforms, seed, train_fraction, kind.epochs * epochs), quiet=True)
                rows.append({"kind": kind.full, "seed": seed, "result": encode(result)})
                bar.advance(task)
    return rows


def _config(out: Path, transforms: str, seed: int, train_fraction: float, epochs: int) -> TrainConfig:
    return TrainConfig.for_data(
        "digits", str(out), transforms=transforms, seed=seed, train_fraction=train_fraction, epochs=epochs,
        evaluate_every=0, tensorboard=False, device="cpu", resume=True,
    )  # fmt: skip


def summary(rows: list[dict[str, Any]], command: str) -> dict[str, Any]:
    """The demo's figures, run by run, with where they come from."""
    some = rows[0]["result"]
    return {
        "command": command,
        "commit": some["commit"],
        "versions": some["versions"],
        "device": some["device"],
        "train_images": some["train"]["n"],
        "test_images": some["test"]["full"]["n"],
        "rows": _figures(rows),
    }


def _figures(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "kind": row["kind"],
            "seed": row["seed"],
            "pruned": row["result"]["test"]["pruned"]["accuracy"],
            "full": row["result"]["test"]["full"]["accuracy"],
            "generalization": row["result"]["generalization"],
            "train_passes": row["result"]["cost"]["train_passes"],
            "predict_passes": row["result"]["cost"]["predict_passes"],
        }
        for row in rows
    ]


def equal_passes(rows: list[dict[str, Any]]) -> str:
    """What TransNet's pruned classifiers gain over base trained for as many passes, where both were trained.

    Args:
        rows: those of `summary`.
    """
    said = []
    for m in (2, 3):
        pruned = [100 * row["pruned"] for row in rows if row["kind"] == f"T{m}"]
        base = [100 * row["pruned"] for row in rows if row["kind"] == f"base, {m}× epochs"]
        if pruned and base:
            said.append(f"PT{m} {difference(pruned, base)}")
    return "Against base of equal training passes: " + ("; ".join(said) or "not measured") + "."


def _table(rows: list[dict[str, Any]]) -> Table:
    some = rows[0]["result"]
    n = len({row["seed"] for row in rows})
    table = Table(
        title=f"digits, {some['train']['n']} training images, {some['test']['full']['n']} test images, "
        + ("one seed" if n == 1 else f"mean ± standard error over {n} seeds")
    )
    for column in ("", "accuracy %", "test /\ntrain loss", "training\npasses", "passes\nan image"):
        table.add_column(column, justify="left" if not column else "right")
    for kind in KINDS:
        results = [row["result"] for row in rows if row["kind"] == kind.full]
        m = results[0]["cost"]["predict_passes"]
        passes = f"{results[0]['cost']['train_passes']:,}"
        ratio = _figure([r["generalization"] for r in results], "{:.1f}")
        pruned = _figure([100 * r["test"]["pruned"]["accuracy"] for r in results], "{:.2f}")
        table.add_row(kind.pruned + (", pruned" if m > 1 else ""), pruned, ratio, passes, "1")
        if m > 1:
            full = _figure([100 * r["test"]["full"]["accuracy"] for r in results], "{:.2f}")
            table.add_row(f"{kind.full}, all heads", full, "", passes, str(m))
    return table


def _figure(values: list[float], form: str) -> str:
    mean, error = mean_and_error(values)
    return form.format(mean) + (f" ± {form.format(error)}" if error is not None else "")
