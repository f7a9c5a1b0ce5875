"""Choose the early-exit threshold of a run on its validation split."""

from dataclasses import dataclass
from pathlib import Path

import torch

from transnet.early_exit import calibrate, check_target, curve
from transnet.errors import ConfigError, TransnetError
from transnet.train.evaluate_runs import collect


@dataclass(frozen=True)
class Target:
    """What early exit should reach; `choose_threshold` finds the threshold for it.

    Attributes:
        within: percentage points of accuracy that may be lost.
        passes: if given, the passes per image that may be spent instead.
    """

    within: float = 0.1
    passes: float | None = None

    def __post_init__(self) -> None:
        check_target(self.within, self.passes)


@dataclass(frozen=True)
class Threshold:
    """A threshold that was chosen for a run. Its text explains what it costs and reaches.

    Attributes:
        confidence: the threshold.
        passes: heads per image, on average over the validation split.
        heads: the number of heads.
        n: number of validation images.
        lost: percentage points of accuracy lost on them, compared with all heads.
    """

    confidence: float
    passes: float
    heads: int
    n: int
    lost: float

    def __str__(self) -> str:
        return (
            f"confidence {self.confidence:.4f}: {self.passes:.2f} of {self.heads} heads per image on average, and "
            f"{-self.lost:+.2f} points of accuracy compared with all heads, on {self.n:,} validation images"
        )


def choose_threshold(
    path: str | Path, target: Target | None = None, *, data: str | None = None, device: str = "auto"
) -> Threshold:
    """Choose the threshold of a run on its validation split.

    Args:
        path: the run's folder.
        target: what to reach; by default at most 0.1 points of accuracy are lost.
        data: the run's data, if it is not where the run found it.
        device: where to compute.

    Raises:
        ConfigError: if there is no validation split. A threshold chosen on the test set would flatter its results.
    """
    target = target or Target()
    try:
        found = collect(path, data=data, split="val", device=device)
    except TransnetError as error:
        problem = f"`{error.field}`: {error.message}" if error.field else error.message
        raise ConfigError(f"{problem}; or give a number, such as 0.9", field="confidence") from None
    logits, y = found.views[0], found.labels
    chosen = calibrate(logits, y, within=target.within, passes=target.passes)
    point = curve(logits, y, torch.tensor([chosen], dtype=torch.float64))
    lost = 100 * (point.full - float(point.accuracy))
    return Threshold(chosen, float(point.passes), point.heads, len(y), lost)
