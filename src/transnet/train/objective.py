"""What is minimised: a sum of weighted terms.

A term looks at what the network said of one batch and returns a scalar. The loop and the step know only the sum;
another idea (weights per head, another penalty) is another term.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transnet.distillation import distillation_loss, student_of
from transnet.errors import ConfigError
from transnet.invariance import invariance_penalty
from transnet.model import heads_loss
from transnet.runs.config import TrainConfig


@dataclass(frozen=True)
class Said:
    """What a network said of a batch.

    Attributes:
        net: the network.
        logits: (B, m, K), of each head on its own copy.
        across: (B, m, m, K), of every head on every copy, copies first; None where no term asked for it.
    """

    net: nn.Module
    logits: Tensor
    across: Tensor | None = None


Term = Callable[[Said, Tensor], Tensor]


@dataclass(frozen=True)
class Objective:
    """Weighted terms, called on what the network said and the targets.

    Attributes:
        terms: each with its weight.
        across: whether one of them needs every head on every copy.
    """

    terms: tuple[tuple[float, Term], ...]
    across: bool = False

    def __call__(self, said: Said, y: Tensor) -> Tensor:
        """The value to differentiate."""
        parts = [weight * term(said, y) for weight, term in self.terms]
        return torch.stack(parts).sum() if len(parts) > 1 else parts[0]


def cross_entropy(label_smoothing: float = 0.0) -> Term:
    """Alg. 1's loss."""

    def term(said: Said, y: Tensor) -> Tensor:
        return heads_loss(said.logits, y, label_smoothing=label_smoothing)

    return term


def kernel_invariance(group: str) -> Term:
    """The mean squared relative distance of the convolution kernels from those that ``group`` leaves as they are.

    The paper only suggests it: its invariance score as a regulariser of its own.
    """

    def term(said: Said, _y: Tensor) -> Tensor:
        return invariance_penalty(said.net, group)

    return term


def distillation(student: int) -> Term:
    """Teach one head what all of them say together."""

    def term(said: Said, _y: Tensor) -> Tensor:
        return distillation_loss(said.logits, student)

    return term


def transforms_told(said: Said, _y: Tensor) -> Tensor:
    """−log p(t | t(x)): which transform a copy went through is told by which head its scores are highest under.

    Where one softmax goes over all pairs of class and head, that is the loss of the pair (y, t) less the loss of y
    alone. So with weight 1 the sum with `cross_entropy` is self-supervised label augmentation (Lee et al., 2020), and
    with weight 0 TransNet. Label smoothing, where there is any, goes over the classes of the copy's own transform.
    """
    assert said.across is not None
    per_head = said.across.logsumexp(-1)  # (B, m, m)
    return (per_head.logsumexp(-1) - per_head.diagonal(dim1=1, dim2=2)).mean()


def objective_of(config: TrainConfig) -> Objective:
    """The terms a run's settings ask for."""
    names = config.names
    terms = [(1.0, cross_entropy(config.label_smoothing))]
    if config.invariance_weight:
        terms.append((config.invariance_weight, kernel_invariance("r0,r1,r2,r3")))
    if config.distillation:
        try:
            student = student_of(names, config.distillation)
        except ValueError as error:
            raise ConfigError(str(error).removeprefix("distillation: "), field="distillation") from None
        terms.append((config.distillation, distillation(student)))
    if config.label_augmentation:
        if config.heads == "shared" or len(set(names)) < max(len(names), 2):
            raise ConfigError(
                "a copy's transform is told by its head; that takes separate heads of different "
                "transforms, such as `transforms` r0,r1",
                field="label_augmentation",
            )
        terms.append((config.label_augmentation, transforms_told))
    return Objective(tuple(terms), across=bool(config.label_augmentation))
