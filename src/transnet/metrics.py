"""Metrics of classifiers from the logits (N, M, K) of their members: heads of one network, or several networks."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

BINS = 15


def calibration_error(logits: Tensor, y: Tensor) -> float:
    """Compute the expected calibration error of logits (N, K): |confidence − accuracy| over 15 bins of confidence."""
    confidence, choice = logits.double().softmax(-1).max(-1)
    bins = (confidence * BINS).long().clamp(0, BINS - 1)
    gaps = torch.bincount(bins, weights=confidence - (choice == y).double(), minlength=BINS)
    return (gaps.abs().sum() / len(y)).item()


def disagreement(members: Tensor) -> Tensor:
    """Compute how far the members disagree about each image, as the mutual information of class and member in nats.

    It is the mean Kullback–Leibler divergence of their probabilities from the mean: from 0 (all agree) to log M.
    """
    log_p = members.double().log_softmax(-1)
    log_mean = log_p.logsumexp(1, keepdim=True) - math.log(members.shape[1])
    return (log_p.exp() * (log_p - log_mean)).sum(-1).mean(1).clamp_min(0)


def auroc(values: Tensor, positive: Tensor) -> float | None:
    """Compute the probability that a positive has a higher value than a negative (a tie counts half), or None."""
    n = int(positive.sum())
    if n in (0, len(values)):
        return None
    _, order, counts = values.unique(return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2)[order].double()  # from 1; equal values share their mean rank
    return (ranks[positive].sum().item() - n * (n + 1) / 2) / (n * (len(values) - n))


def uncertainty(members: Tensor, y: Tensor) -> dict[str, float]:
    """Measure how far the mean of several members' logits (N, M, K) can be trusted, in the fields of `Uncertainty`."""
    mean = members.mean(1)
    found: dict[str, float] = {"calibration_error": calibration_error(mean, y)}
    if members.shape[1] > 1:
        values, votes = disagreement(members), members.argmax(-1)
        found["disagreement"] = values.mean().item()
        found["split_votes"] = (votes != votes[:, :1]).any(1).double().mean().item()
        if (area := auroc(values, mean.argmax(-1) != y)) is not None:
            found["error_auroc"] = area
    return found


def score_sums(logits: Tensor, y: Tensor) -> Tensor:
    """Compute sums for accuracy, loss and recalls of M classifiers, (M, 1 + 2K) in float64, from logits (N, M, K).

    A row holds the summed cross-entropy, the correct predictions of each class, and the images of each class.
    """
    batch, rows, classes = logits.shape
    targets = y[:, None].expand(batch, rows)
    loss = F.cross_entropy(logits.reshape(-1, classes), targets.reshape(-1), reduction="none")
    right = (logits.argmax(-1) == targets).double()
    correct = right.new_zeros(rows, classes).index_add_(1, y, right.T)
    number = torch.bincount(y, minlength=classes).double().expand(rows, classes)
    return torch.cat([loss.view(batch, rows).double().sum(0)[:, None], correct, number], 1)
