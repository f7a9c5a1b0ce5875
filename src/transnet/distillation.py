"""Teach the head that is kept what all heads say together.

Beyond the paper: pruned to one head, a network forgets what the others know. With this term in the loss the identity
head learns it while they all train, for no further pass. Self-supervised label augmentation (Lee et al., 2020) teaches
one more classifier in this way.

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
    """How far one head is from the mean of all; add it to `heads_loss` where you will prune to that head.

    The divergence of the head's probabilities from those of the mean logits, averaged over the batch. The mean is held
    fixed, so that it does not come down to the student.

    Args:
        logits: (B, m, K), from ``net.logits(x)``.
        student: the number of the head that learns: `TransNet.prune` keeps ``net.transforms.index("r0")``.
    """
    if logits.ndim != 3 or logits.shape[1] < 2:
        raise ModelError(
            f"logits: {tuple(logits.shape)} was given; (batch, heads, classes) of two heads or more is needed"
        )
    if not isinstance(student, int) or not 0 <= student < logits.shape[1]:
        raise ModelError(
            f"student: {student!r} was given; the number of a head is needed, from 0 to {logits.shape[1] - 1}"
        )
    # Heads that nearly agree differ by less than half precision can tell.
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    together = logits.detach().mean(1).log_softmax(-1)
    return F.kl_div(logits[:, student].log_softmax(-1), together, reduction="batchmean", log_target=True)


def student_of(transforms: Sequence[str], weight: float) -> int:
    """The head that learns where a network is to be pruned: the identity's.

    Args:
        transforms: the heads' names.
        weight: of `distillation_loss` in the whole loss.

    Raises:
        ValueError: where there is none, or no other to learn from, or the weight is not a finite number from 0.
    """
    if not 0 <= weight < math.inf:
        raise ModelError(f"distillation: {weight} was given; 0 or more is needed")
    if "r0" not in transforms or len(transforms) < 2:
        raise ModelError(
            f"distillation: the identity head r0 learns from others, {','.join(transforms)} was given; r0 and at least "
            "one more are needed, such as r0,r1"
        )
    return transforms.index("r0")
