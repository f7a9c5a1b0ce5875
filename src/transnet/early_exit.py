"""Anytime prediction: the paper's "process an image once, then decide whether to go on with the other heads".

The heads run one after the other. After each, an image whose class is certain enough leaves; only the others are
transformed again and go on. Easy images cost one pass of the backbone, hard ones all m.

Going on pays only where it can change the class, so what counts is the class's lead over the runner-up, not its
probability among all K: after the first head p₁ / (p₁ + p₂) ≥ confidence. After more heads the odds that they give the
class against the runner-up are multiplied, that is, log-odds are added until their sum reaches logit(confidence):
Wald's sequential test (1945). To overturn such a class, the next head would have to be as sure of the opposite.

>>> probabilities, used = anytime(net, images, confidence=0.9)

The threshold is a trade of accuracy against cost. `calibrate` chooses it on a validation split, `curve` shows it whole,
and `transnet evaluate RUN --anytime` prints and draws it for a run.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from transnet.errors import ConfigError, DataError
from transnet.inputs import check_images
from transnet.model import TransNet

BUDGETS = (1.1, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0, 4.0, 6.0)  # passes per image that are worth a line in a table


def anytime(net: TransNet, x: Tensor, confidence: float = 0.9) -> tuple[Tensor, Tensor]:
    """Predict with as few heads as each image needs: near the full model's accuracy at a fraction of its cost.

    After each head the logits so far are averaged. An image stops where its class is preferred to the runner-up with
    probability ``confidence``, the odds of the heads so far multiplied. The heads run in the order of
    ``net.transforms``, so the first should be the best.

    Args:
        net: in evaluation mode.
        x: a batch of normalised images.
        confidence: from a half or less (one head for all) to 1 (all heads for all). A value for a wanted accuracy
            comes from `calibrate`.

    Returns:
        Probabilities (B, K), and the number of heads used for each image, (B,).
    """
    probabilities, votes = run_heads(net, x, confidence)
    return probabilities, (votes >= 0).sum(1)


@torch.no_grad()
def run_heads(net: TransNet, x: Tensor, confidence: float) -> tuple[Tensor, Tensor]:
    """What `anytime` does; take this one to see what each head said.

    Returns:
        Probabilities (B, K), and each head's class (B, m), -1 where the head was not run.
    """
    if not 0 <= confidence <= 1:
        raise ValueError(f"confidence: {confidence} was given; a probability from 0 to 1 is needed, such as 0.9")
    if net.training:
        raise ValueError("anytime: the network is in training mode, where images influence each other; call net.eval()")
    check_images(x, net.transforms)  # for all heads: whether an image needs them is not known yet
    total = net._logits(x, [0])[:, 0]
    probabilities = total.softmax(-1)
    votes = torch.full((len(x), len(net.transforms)), -1, device=total.device)
    votes[:, 0] = total.argmax(-1)
    undecided = torch.arange(len(x), device=total.device)
    for i in range(1, len(net.transforms)):
        go_on = (lead(total) < needed_lead(confidence)).nonzero()[:, 0]
        if not len(go_on):
            break
        undecided, total = undecided[go_on], total[go_on]
        logits = net._logits(x[undecided], [i])[:, 0]
        total = total + logits
        probabilities[undecided] = (total / (i + 1)).softmax(-1)
        votes[undecided, i] = logits.argmax(-1)
    return probabilities, votes


def lead(logits: Tensor) -> Tensor:
    """By how much the highest logit leads the next: the log-odds of the class against its runner-up, (…, K) → (…)."""
    if logits.shape[-1] < 2:
        return logits.new_full(logits.shape[:-1], math.inf)
    first, second = logits.topk(2, -1).values.unbind(-1)
    return first - second


def needed_lead(confidence: float) -> float:
    """The `lead` of the sum of the logits at which an image stops: the log-odds of ``confidence``."""
    return math.inf if confidence == 1 else math.log(confidence / (1 - confidence)) if confidence else -math.inf


@dataclass(frozen=True)
class Curve:
    """What each threshold costs and reaches.

    Attributes:
        confidence: (T,) thresholds, rising.
        accuracy: (T,) at each.
        passes: (T,) heads an image, on average.
        full: the accuracy with all heads.
        heads: their number.
    """

    confidence: Tensor
    accuracy: Tensor
    passes: Tensor
    full: float
    heads: int

    def columns(self) -> dict[str, list[float]]:
        """The three of each threshold, for JSON."""
        return {name: getattr(self, name).tolist() for name in ("confidence", "passes", "accuracy")}


def curve(logits: Tensor, y: Tensor, confidences: Tensor | None = None) -> Curve:
    """Accuracy and cost of anytime prediction for many thresholds at once, from the outputs of all heads.

    Args:
        logits: (N, m, K), from `net.logits(x)`.
        y: labels (N,).
        confidences: the thresholds; by default from a half, where every image stops after one head, to 1, fine where
            they crowd near 1.
    """
    if logits.ndim != 3 or y.shape != (len(logits),) or not len(y):
        raise ValueError(f"logits {tuple(logits.shape)}, labels {tuple(y.shape)}; (N, heads, K) and (N,) are needed")
    if confidences is None:
        odds = torch.linspace(0, 12, 481, dtype=torch.float64)
        confidences = torch.cat([odds.sigmoid(), torch.ones(1).double()])
    sums = logits.double().cumsum(1)
    leads, right = lead(sums), (sums.argmax(-1) == y[:, None]).double()
    leads[:, -1] = math.inf  # no head is left
    accuracy, passes = [], []
    for threshold in confidences.tolist():
        stops = leads >= needed_lead(threshold)
        last = stops.double().argmax(1)  # the first head after which the image leaves
        accuracy.append(float(right.gather(1, last[:, None]).mean()))
        passes.append(float((last + 1).double().mean()))
    full = float(right[:, -1].mean())
    reached, spent = (torch.tensor(values, dtype=torch.float64) for values in (accuracy, passes))
    return Curve(confidences, reached, spent, full, logits.shape[1])


def calibrate(logits: Tensor, y: Tensor, *, within: float = 0.1, passes: float | None = None) -> float:
    """The lowest threshold that keeps anytime prediction within so many points of the full model's accuracy.

    It is the lowest from which on every higher one keeps to it too: a threshold that is good by luck is passed over.

    Args:
        logits: (N, m, K), the outputs of all heads on a validation split: never on the test set.
        y: its labels (N,).
        within: percentage points of accuracy that may be lost.
        passes: instead of ``within``, what may be spent: the highest threshold that needs so many passes per image.
    """
    if not within >= 0:
        raise ValueError(f"within: {within} was given; 0 or more percentage points are needed")
    points = curve(logits, y)
    if passes is not None:
        if not passes >= 1:
            raise ValueError(f"passes: {passes} was given; every image takes 1 at least")
        return float(points.confidence[(points.passes <= passes).nonzero()[-1, 0]])
    keeps = points.accuracy >= points.full - within / 100 - 1e-9
    from_here = keeps.flip(0).int().cumprod(0).flip(0).bool()
    return float(points.confidence[from_here.nonzero()[0, 0]]) if from_here.any() else 1.0


@dataclass(frozen=True)
class Auto:
    """In place of a threshold: choose it on the run's validation split, by `calibrate`.

    Attributes:
        within: percentage points of accuracy that may be lost.
        passes: instead, what may be spent.
    """

    within: float = 0.1
    passes: float | None = None

    def __post_init__(self) -> None:
        for name, value, least in (("within", self.within, 0), ("passes", self.passes, 1)):
            if value is not None and not least <= value < math.inf:
                raise ConfigError(f"--{name}: {value} was given; {least} or more is needed")


@dataclass(frozen=True)
class Calibration:
    """A threshold that `calibrate` chose for a run; as text, what it means.

    Attributes:
        confidence: the threshold.
        passes: heads an image, on average over the validation split.
        heads: their number.
        n: images of the validation split.
        lost: percentage points by which it is behind all heads there.
        within: what may be lost; None where it was chosen for so many passes.
    """

    confidence: float
    passes: float
    heads: int
    n: int
    lost: float
    within: float | None = None

    def __str__(self) -> str:
        if self.passes == 1:
            used = "one head for every image"
        elif self.passes == self.heads:
            used = f"all {self.heads} heads for every image"
        else:
            used = f"{self.passes:.2f} of {self.heads} heads for an image on average"
        if self.within is not None:
            kept = f"within {self.within:g} points of all heads"
        else:
            kept = f"{self.lost:.2f} points below all heads" if self.lost > 0.005 else "no worse than all heads"
        return f"confidence {self.confidence:.4f}, {used}: {kept} on {self.n:,} validation images"


def calibrate_run(
    path: str | Path, *, within: float = 0.1, passes: float | None = None, data: str | None = None, device: str = "auto"
) -> Calibration:
    """`calibrate` on the validation split of a run.

    Args:
        path: the run's folder.
        within: as for `calibrate`.
        passes: as for `calibrate`, instead of ``within``.
        data: where the run's data lies, where that is not what the run calls it.
        device: where to compute.

    Raises:
        ConfigError: where the run has none: a threshold chosen on the test set would make its figures worthless.
    """
    from transnet.train.evaluate_runs import collect

    try:
        found = collect(path, data=data, split="val", device=device)
        logits, y = found.views[0], found.labels
    except (ConfigError, DataError) as error:
        raise ConfigError(f"`confidence` auto: {error}; or give a number, such as 0.9") from None
    chosen = calibrate(logits, y, within=within, passes=passes)
    there = curve(logits, y, torch.tensor([chosen], dtype=torch.float64))
    lost = 100 * (there.full - float(there.accuracy))
    return Calibration(chosen, float(there.passes), there.heads, len(y), lost, within if passes is None else None)


def tradeoff(logits: Tensor, y: Tensor, chosen_on: tuple[Tensor, Tensor]) -> Curve:
    """What anytime prediction reaches for about so many passes: a few points, from one head to all.

    Args:
        logits: (N, m, K), of the images that judge.
        y: their labels (N,).
        chosen_on: logits and labels of those on which `calibrate` chooses a threshold for each of `BUDGETS`.
    """
    chosen = {calibrate(*chosen_on, passes=passes) for passes in BUDGETS if passes < logits.shape[1]}
    return curve(logits, y, torch.tensor(sorted(chosen | {0.5, 1.0}), dtype=torch.float64))
