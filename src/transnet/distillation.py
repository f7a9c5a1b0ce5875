"""Self-distillation: train the pruned head to predict what the mean of all heads predicts.

This is not in the paper. Lee et al. (2020) train an additional classifier in this way.

>>> logits = net(images)                     # in training mode; net.logits(images) in every mode
>>> loss = heads_loss(logits, labels) + distillation_loss(logits)
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from transnet.errors import ModelError


def distillation_loss(logits: Tensor, student: int = 0) -> Tensor:
    """Return how far one head is from the mean of all heads; add it to `heads_loss` if you will prune to that head.

    This is the Kullback–Leibler divergence of the head's probabilities from those of the mean logits, averaged over
    the batch. No gradient flows into the mean, so that it is not pulled towards the student.

    Args:
        logits: (B, m, K), from ``net.logits(x)``.
        student: the index of the head that learns: `TransNet.prune` keeps ``net.transforms.index("r0")``.
    """
    if logits.ndim != 3 or logits.shape[1] < 2:
        given = tuple(logits.shape)
        raise ModelError(f"{given} was given; (B, heads, K) with two heads or more is needed", field="logits")
    if not isinstance(student, int) or not 0 <= student < logits.shape[1]:
        known = f"0 to {logits.shape[1] - 1}"
        raise ModelError(f"{student!r} was given; the index of a head is needed, {known}", field="student")
    # Heads that nearly agree differ by less than half precision resolves.
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    mean = logits.detach().mean(1).log_softmax(-1)
    return F.kl_div(logits[:, student].log_softmax(-1), mean, reduction="batchmean", log_target=True)


def student_of(transforms: Sequence[str], weight: float) -> int:
    """Return the index of the identity head, or raise if it cannot learn from another head with this weight."""
    if not 0 <= weight < math.inf:
        raise ModelError(f"{weight} was given; 0 or more is needed", field="distillation")
    if "r0" not in transforms or len(transforms) < 2:
        given = ",".join(transforms)
        raise ModelError(f"the head of r0 learns from another, such as r0,r1; {given} was given", field="distillation")
    return transforms.index("r0")
