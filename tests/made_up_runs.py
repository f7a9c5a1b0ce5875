"""Finished runs with given accuracies, as typed records, for tests of tables."""

import json
from pathlib import Path

from transnet.runs.config import TrainConfig
from transnet.runs.records import (
    Cost,
    DataDescription,
    HeadScore,
    Result,
    RunSettings,
    Score,
    Scores,
    SplitSizes,
    encode,
)
from transnet.study.file import read_study
from transnet.study.results import FinishedRun, Series

CLEAR = {
    "base": [76.0, 76.2, 76.4], "t2": [79.0, 79.2, 79.4], "t3": [78.0, 78.3, 78.1], "base-x2": [77.0, 77.1, 77.3],
}  # fmt: skip

KINDS = read_study("kinds").variants


def names_and_cost(kind: str) -> tuple[list[str], int]:
    """The heads of a kind of run, and its training passes relative to the baseline's."""
    known = KINDS.get(kind)
    names = str(known.options["transforms"]).split(",") if known else ["r0", "r1"]
    return names, len(names) * (known.times if known else 1)


def result(
    kind: str, accuracy: float, *, data: str = "cifar100", recipe: str = "fast", flip: bool = True, lower: float = 10,
    full: float = 0, epochs: int = 60, model: str = "resnet18-cifar", train_fraction: float = 1.0,
    commit: str | None = "abc", at_once: int = 1, seconds: float = 10,
) -> Result:  # fmt: skip
    """A result.

    Args:
        accuracy: in percent, of the pruned classifier as the paper tests it.
        lower: by how much it is lower on the image alone, so that a table by the wrong test shows.
        full: by how much all heads are better.
    """
    names, cost = names_and_cost(kind)

    def scores(percent: float, passes: int) -> Scores:
        heads = tuple(HeadScore(name=name, accuracy=percent / 100, loss=1.0, n=100) for name in names)
        pruned = Score(percent / 100, 1.0, 100, passes)
        return Scores(pruned, Score((percent + full) / 100, 1.0, 100, passes * len(names)), heads)

    description = DataDescription(
        data, ("a", "b"), 3, 32, 32, (0.5,) * 3, (0.2,) * 3, flip, 4, SplitSizes(500, 0, 100), (), "f"
    )
    settings = TrainConfig(
        data=data, out=".", model=model, transforms=",".join(names), recipe=recipe,  # type: ignore[arg-type]
        epochs=epochs * (cost // len(names)), lr=0.4, batch_size=512, train_fraction=train_fraction,
    )  # fmt: skip
    return Result(
        test=scores(accuracy - lower if flip else accuracy, 1), test_flip=scores(accuracy, 2) if flip else None,
        val=None, train=None, generalization=2.0, cost=Cost(1000 * cost, len(names), 900 + 100 * len(names), 1.0),
        config=RunSettings(settings, description), seconds=1.0, train_seconds=seconds * cost,
        versions={"torch": "2.11"}, device="a GPU", command="transnet train", commit=commit, at_once=at_once,
    )  # fmt: skip


def series(values: dict[str, list[float]], *, name: str = "cifar100-fast", data: str = "cifar100", flip: bool = True,
           full: float = 0) -> Series:  # fmt: skip
    """A series with one run per accuracy."""
    return Series(name, {
        kind: [FinishedRun(f"{name}-{kind}-s{i}", kind, i, Path(), result(kind, value, data=data, flip=flip, full=full),
                           []) for i, value in enumerate(given)]
        for kind, given in values.items()
    })  # fmt: skip


def write_study(
    results: Path, name: str, values: dict[str, list[float]], *, folder: str | None = None, seconds: float = 30,
    at_once: dict[str, tuple[int, ...]] | None = None, epochs: int = 60, model: str = "resnet18-cifar",
    train_fraction: float = 1.0, commit: str | None = "abc",
) -> None:  # fmt: skip
    """Write a study's folder. Accuracies are 10 points lower per training pass on the image alone, and a point higher
    with all heads."""
    data, recipe = name.split("-")
    for kind, given in values.items():
        _, cost = names_and_cost(kind)
        for seed, value in enumerate(given):
            shared = at_once[kind][seed] if at_once and kind in at_once else 1
            made = result(
                kind, value, data=data, recipe=recipe, lower=10 * cost, full=1, epochs=epochs, model=model,
                train_fraction=train_fraction, commit=commit, at_once=shared,
                seconds=seconds + seed / cost,
            )  # fmt: skip
            run = results / (folder or data) / "runs" / f"{name}-{kind}-s{seed}"
            run.mkdir(parents=True)
            (run / "result.json").write_text(json.dumps(encode(made)))
