"""What is minimised: a sum of weighted terms.

A term looks at the network and the logits of one batch and returns a scalar. The loop and the step know only the
sum; another idea (distillation, weights per head, a penalty on the kernels) is another term.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transnet.invariance import invariance_penalty
from transnet.model import TransNet, heads_loss
from transnet.train.config import TrainConfig

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


def objective_of(config: TrainConfig) -> Objective:
    """The terms a run's settings ask for."""
    terms = [(1.0, cross_entropy(config.label_smoothing))]
    if config.invariance_weight:
        terms.append((config.invariance_weight, kernel_invariance("r0,r1,r2,r3")))
    return Objective(tuple(terms))
