"""Early exit: the paper's "process an image once, then decide whether to go on with the other heads".

>>> probabilities, used = anytime(net, images, confidence=0.9)

The heads run one after another. After each, the images whose class is certain enough are finished, and only the others
go to the next head. A further head matters only if it can change the class, so what counts is the class's lead over the
runner-up. After the first head an image is finished if p₁ / (p₁ + p₂) ≥ confidence. After more heads the odds are
multiplied: log-odds are added until their sum reaches logit(confidence). This is Wald's sequential test (1945).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from transnet.errors import ConfigError, ModelError
from transnet.inputs import check_images
from transnet.model import TransNet


def anytime(net: TransNet, x: Tensor, confidence: float = 0.9) -> tuple[Tensor, Tensor]:
    """Predict with as few heads as each image needs: close to the full model's accuracy at a fraction of its cost.

    The prediction is the mean of the logits of the heads that ran, in the order of ``net.transforms``. An image is
    finished when its class is preferred to the runner-up with probability ``confidence``.

    Args:
        net: in evaluation mode.
        x: a batch of normalised images.
        confidence: from 0.5 or less (one head for every image) to 1 (all heads). `calibrate` chooses it.

    Returns:
        Probabilities (B, K), and the number of heads used for each image, (B,).
    """
    probabilities, votes = run_heads(net, x, confidence)
    return probabilities, (votes >= 0).sum(1)


@torch.no_grad()
def run_heads(net: TransNet, x: Tensor, confidence: float) -> tuple[Tensor, Tensor]:
    """Do the same as `anytime`, but return each head's class (B, m) or, if it did not run, -1 as the second value."""
    check_confidence(confidence)
    if net.training:
        raise ModelError("in training mode images influence each other; call net.eval() first")
    check_images(x, net.transforms)  # for all heads, because any of them may have to run
    total = net._logits(x, [0])[:, 0]
    probabilities = total.softmax(-1)
    votes = torch.full((len(x), len(net.transforms)), -1, device=total.device)
    votes[:, 0] = total.argmax(-1)
    undecided = torch.arange(len(x), device=total.device)
    for i in range(1, len(net.transforms)):
        unsure = (lead(total) < _needed_lead(confidence)).nonzero()[:, 0]
        if not len(unsure):
            break
        undecided, total = undecided[unsure], total[unsure]
        logits = net._logits(x[undecided], [i])[:, 0]
        total = total + logits
        probabilities[undecided] = (total / (i + 1)).softmax(-1)
        votes[undecided, i] = logits.argmax(-1)
    return probabilities, votes


def check_confidence(confidence: float) -> None:
    """Raise a ConfigError if this is not a probability."""
    if not 0 <= confidence <= 1:
        raise ConfigError(f"{confidence} was given; a number from 0 to 1 is needed", field="confidence")


def lead(logits: Tensor) -> Tensor:
    """Return by how much the highest logit exceeds the next, the log-odds of the class: (…, K) → (…)."""
    if logits.shape[-1] < 2:
        return logits.new_full(logits.shape[:-1], math.inf)
    first, second = logits.topk(2, -1).values.unbind(-1)
    return first - second


def _needed_lead(confidence: float) -> float:
    return torch.tensor(confidence, dtype=torch.float64).logit().item()


@dataclass(frozen=True)
class Curve:
    """Accuracy (a fraction) and mean passes per image of early exit, for each threshold in increasing order."""

    confidence: Tensor
    accuracy: Tensor
    passes: Tensor
    full: float  # the accuracy with all heads
    heads: int

    def columns(self) -> dict[str, list[float]]:
        """Return the three columns as lists, for JSON."""
        return {name: getattr(self, name).tolist() for name in ("confidence", "passes", "accuracy")}


def curve(logits: Tensor, y: Tensor, confidences: Tensor | None = None) -> Curve:
    """Compute accuracy and cost of early exit for many thresholds at once, from the logits (N, m, K) of all heads.

    By default the thresholds go from 0.5 (one head for every image) to 1, evenly spaced in log-odds.
    """
    if logits.ndim != 3 or y.shape != (len(logits),) or not len(y):
        raise ModelError(f"logits {tuple(logits.shape)}, labels {tuple(y.shape)}; (N, heads, K) and (N,) are needed")
    if confidences is None:
        odds = torch.linspace(0, 12, 481, dtype=torch.float64)
        confidences = torch.cat([odds.sigmoid(), odds.new_ones(1)])
    sums = logits.double().cumsum(1)
    leads, right = lead(sums), (sums.argmax(-1) == y[:, None]).double()
    leads[:, -1] = math.inf  # no head is left
    accuracy, passes = [], []
    for threshold in confidences.tolist():
        last = (leads >= _needed_lead(threshold)).double().argmax(1)  # the first head that is certain enough
        accuracy.append(right.gather(1, last[:, None]).mean())
        passes.append((last + 1).double().mean())
    return Curve(confidences, torch.stack(accuracy), torch.stack(passes), right[:, -1].mean().item(), logits.shape[1])


def calibrate(logits: Tensor, y: Tensor, *, within: float = 0.1, passes: float | None = None) -> float:
    """Choose the lowest threshold that loses at most ``within`` percentage points of the full model's accuracy.

    Every higher threshold must satisfy this too, so that a threshold that is good by chance is not chosen. If
    ``passes`` is given, choose the highest threshold that needs at most this many passes per image instead. Give the
    logits (N, m, K) and labels (N,) of a validation split, never of the test set.
    """
    check_target(within, passes)
    points = curve(logits, y)
    if passes is not None:
        return float(points.confidence[(points.passes <= passes).nonzero()[-1, 0]])
    good = points.accuracy >= points.full - within / 100 - 1e-9
    good_from_here = good.flip(0).int().cumprod(0).flip(0).bool()
    return float(points.confidence[good_from_here.nonzero()[0, 0]]) if good_from_here.any() else 1.0


def check_target(within: float, passes: float | None) -> None:
    """Raise a ConfigError if `calibrate` cannot meet this target."""
    for name, value, least in (("within", within, 0), ("passes", passes, 1)):
        if value is not None and not least <= value < math.inf:
            raise ConfigError(f"{value} was given; {least} or more is needed", field=name)


def tradeoff(logits: Tensor, y: Tensor, chosen_on: tuple[Tensor, Tensor]) -> Curve:
    """Return a few points of the curve, from one head to all, at thresholds that `calibrate` chooses on other data."""
    budgets = (1.1, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0, 4.0, 6.0)
    chosen = {calibrate(*chosen_on, passes=passes) for passes in budgets if passes < logits.shape[1]}
    return curve(logits, y, torch.tensor(sorted(chosen | {0.5, 1.0}), dtype=torch.float64))
