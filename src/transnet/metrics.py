"""How far a classifier's probabilities can be trusted: calibration, and the disagreement of several as a warning.

Members are the heads of one network, several networks, or both: (N, M, K) logits, one row of M a member.
"""

import math
from typing import Any

import torch
from torch import Tensor

BINS = 15


def calibration_error(logits: Tensor, y: Tensor) -> float:
    """Expected calibration error: |confidence − accuracy| over 15 bins of the top probability, (N, K) logits.

    torchmetrics 1.x counts a confidence of exactly 1 in a bin of its own, beside the 15, so this does not call it.
    """
    confidence, choice = logits.double().softmax(-1).max(-1)
    bins = (confidence * BINS).long().clamp(0, BINS - 1)
    gaps = torch.bincount(bins, weights=confidence - (choice == y).double(), minlength=BINS)
    return (gaps.abs().sum() / len(y)).item()


def disagreement(members: Tensor) -> Tensor:
    """Per image, the mean Kullback–Leibler divergence of the members' probabilities from their mean; 0 is unanimous.

    It is the part of the prediction's uncertainty that the members do not share (the mutual information of class and
    member), in nats and at most log M. Use it to set images aside for a person.
    """
    log_p = members.double().log_softmax(-1)
    log_mean = log_p.logsumexp(1, keepdim=True) - math.log(members.shape[1])
    return (log_p.exp() * (log_p - log_mean)).sum(-1).mean(1).clamp_min(0)


def uncertainty(members: Tensor, y: Tensor) -> dict[str, Any]:
    """What `transnet evaluate` says beside accuracy and loss of a classifier whose output is its members' mean logit.

    Returns:
        ``calibration_error`` and, for several members, ``disagreement`` (mean over the images), ``split_votes`` (share
        of images on which not all choose one class) and ``error_auroc``: how well disagreement tells wrong answers
        from right ones, 0.5 for not at all, 1 for perfectly; null where all answers are right or all are wrong.
    """
    from torchmetrics.functional.classification import binary_auroc

    mean = members.mean(1)
    found: dict[str, Any] = {"calibration_error": calibration_error(mean, y)}
    if members.shape[1] > 1:
        values, votes, wrong = disagreement(members), members.argmax(-1), mean.argmax(-1) != y
        mixed = 0 < int(wrong.sum()) < len(wrong)
        # binary_auroc takes what lies in [0, 1] as probabilities; only the order counts.
        ranks = values / values.max().clamp_min(1e-30)
        found["disagreement"] = values.mean().item()
        found["split_votes"] = (votes != votes[:, :1]).any(1).double().mean().item()
        found["error_auroc"] = binary_auroc(ranks, wrong.long()).item() if mixed else None
    return found
