"""The training objective: a sum of weighted terms, functions of the network's outputs for one batch and the targets.

To add a term, write the function and append it in `build_objective`. The rest knows only names and values.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transnet.distillation import distillation_loss, student_of
from transnet.errors import ConfigError, ModelError
from transnet.invariance import invariance_penalty
from transnet.model import heads_loss
from transnet.runs.config import TrainConfig


@dataclass(frozen=True)
class BatchOutputs:
    """The outputs of a network for one batch."""

    net: nn.Module
    logits: Tensor  # (B, m, K), of each head on its own copy
    across: Tensor | None = None  # (B, m, m, K), of every head on every copy, copies first; None if no term needs it


@dataclass(frozen=True)
class Term:
    """One term of the objective: its name in the logs, its factor in the sum, and its scalar value for a batch."""

    name: str
    weight: float
    function: Callable[[BatchOutputs, Tensor], Tensor]
    needs_across: bool = False  # whether it reads `BatchOutputs.across`


@dataclass(frozen=True)
class Objective:
    """What training minimises: the sum of weighted terms."""

    terms: tuple[Term, ...]

    def __call__(self, outputs: BatchOutputs, y: Tensor) -> Tensor:
        """The weighted value of each term, (number of terms,). Their sum is the loss."""
        return torch.stack([term.weight * term.function(outputs, y) for term in self.terms])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the terms."""
        return tuple(term.name for term in self.terms)


def joint_label(outputs: BatchOutputs, _y: Tensor) -> Tensor:
    """−log p(t | t(x)): cross-entropy of the transform of each copy, predicted from the scores of all heads.

    With one softmax over all pairs of class and head, it is the loss of the pair (y, t) minus the loss of y alone.
    Added to the heads' cross-entropy with weight 1, it gives self-supervised label augmentation (Lee et al., 2020).
    """
    assert outputs.across is not None
    per_head = outputs.across.logsumexp(-1)  # (B, m, m)
    return (per_head.logsumexp(-1) - per_head.diagonal(dim1=1, dim2=2)).mean()


def build_objective(config: TrainConfig) -> Objective:
    """The terms that a run's settings choose; the first is Alg. 1's loss. Raise if the heads do not suit a term."""
    names, smoothing = config.names, 0.0 if config.past_targets else config.label_smoothing
    terms = [Term("cross_entropy", 1.0, lambda out, y: heads_loss(out.logits, y, label_smoothing=smoothing))]
    if weight := config.invariance_weight:  # the paper only suggests this use of its invariance score
        terms.append(Term("invariance", weight, lambda out, _: invariance_penalty(out.net, "r0,r1,r2,r3")))
    if config.distillation:
        try:
            student = student_of(names, config.distillation)
        except ModelError as error:
            raise ConfigError(error.message, field=error.field) from None
        terms.append(Term("distillation", config.distillation, lambda out, _: distillation_loss(out.logits, student)))
    if config.label_augmentation:
        if config.heads == "shared" or len(set(names)) < max(len(names), 2):
            problem = "needs separate heads whose transforms differ, such as `transforms` r0,r1"
            raise ConfigError(problem, field="label_augmentation")
        terms.append(Term("joint_label", config.label_augmentation, joint_label, needs_across=True))
    return Objective(tuple(terms))
