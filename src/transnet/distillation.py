"""Teach the head that is kept what all heads say together.

Beyond the paper: pruned to one head, a network forgets what the others know. With this term in the loss the identity
head learns it while they all train, for no further pass. Self-supervised label augmentation (Lee et al., 2020) teaches
one more classifier in this way.

>>> logits = net(images)
>>> loss = heads_loss(logits, labels) + distillation_loss(logits)
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor


def distillation_loss(logits: Tensor, student: int = 0) -> Tensor:
    """How far one head is from the mean of all; add it to `heads_loss` where you will prune to that head.

    The divergence of the head's probabilities from those of the mean logits, averaged over the batch. The mean is held
    fixed, so that it does not come down to the student.

    Args:
        logits: (B, m, K), as ``net(x)`` gives them.
        student: which head learns: the index of ``"r0"`` in ``net.transforms`` for the one that `TransNet.prune` keeps.
    """
    if logits.ndim != 3 or logits.shape[1] < 2:
        raise ValueError(
            f"logits: {tuple(logits.shape)} was given; (batch, heads, classes) of two heads or more is needed"
        )
    if not -logits.shape[1] <= student < logits.shape[1]:
        raise ValueError(f"student: {student} was given, of {logits.shape[1]} heads")
    together = logits.detach().mean(1).log_softmax(-1)
    return F.kl_div(logits[:, student].log_softmax(-1), together, reduction="batchmean", log_target=True)


def student_of(transforms: Sequence[str]) -> int:
    """The head that learns where a network is to be pruned: the identity's.

    Raises:
        ValueError: where there is none, or no other to learn from.
    """
    if "r0" not in transforms or len(transforms) < 2:
        raise ValueError(
            f"distillation: the identity head r0 learns from others; {','.join(transforms)} has not both, r0,r1 has"
        )
    return transforms.index("r0")
