"""What is minimised: a sum of weighted terms.

A term looks at the network and the logits of one batch and returns a scalar. The loop and the step know only the
sum; another idea (weights per head, another penalty) is another term.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transnet.invariance import invariance_penalty
from transnet.model import TransNet, heads_loss
from transnet.train.config import ConfigError, TrainConfig

Term = Callable[[nn.Module, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Objective:
    """Weighted terms, called on (network, logits (B, m, K), targets)."""

    terms: tuple[tuple[float, Term], ...]

    def __call__(self, net: TransNet, logits: Tensor, y: Tensor) -> Tensor:
        """The value to differentiate."""
        parts = [weight * term(net, logits, y) for weight, term in self.terms]
        return torch.stack(parts).sum() if len(parts) > 1 else parts[0]


def cross_entropy(label_smoothing: float = 0.0) -> Term:
    """Alg. 1's loss."""

    def term(_net: nn.Module, logits: Tensor, y: Tensor) -> Tensor:
        return heads_loss(logits, y, label_smoothing=label_smoothing)

    return term


def kernel_invariance(group: str) -> Term:
    """The mean squared relative distance of the convolution kernels from those that ``group`` leaves as they are.

    The paper only suggests it: its invariance score as a regulariser of its own.
    """

    def term(net: nn.Module, _logits: Tensor, _y: Tensor) -> Tensor:
        return invariance_penalty(net, group)

    return term


def distillation(student: int) -> Term:
    """Teach one head what all of them say together: the divergence of its probabilities from those of their mean.

    The mean is held fixed, so that it does not come down to the student. Self-supervised label augmentation (Lee et
    al., 2020) makes a single classifier out of its many in this way.
    """

    def term(_net: nn.Module, logits: Tensor, _y: Tensor) -> Tensor:
        together = logits.detach().mean(1).log_softmax(-1)
        return F.kl_div(logits[:, student].log_softmax(-1), together, reduction="batchmean", log_target=True)

    return term


def objective_of(config: TrainConfig) -> Objective:
    """The terms a run's settings ask for."""
    terms = [(1.0, cross_entropy(config.label_smoothing))]
    if config.invariance_weight:
        terms.append((config.invariance_weight, kernel_invariance("r0,r1,r2,r3")))
    if config.distillation:
        names = config.transforms.split(",")
        if "r0" not in names or len(names) < 2:
            raise ConfigError("--distillation: the identity head r0 learns from others; --transforms r0,r1 has both")
        terms.append((config.distillation, distillation(names.index("r0"))))
    return Objective(tuple(terms))
