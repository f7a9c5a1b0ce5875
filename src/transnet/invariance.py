"""How invariant kernels are under a group of transforms: the paper's invariance score (section 5.3).

For a kernel w, a tensor of shape (I, k, k), and a group T,

    IS(w, T) = min over invariant u of ‖w − u‖ = ‖w − w̄‖,   w̄ = mean over t ∈ T of t(w)      (Lemma 3)

It is a distance: higher is *less* invariant, and it grows with the kernel. w̄ is the orthogonal projection of w on the
invariant kernels, so ``relative`` = ‖w − w̄‖ / ‖w‖ is the sine and ``cosine`` = ‖w̄‖ / ‖w‖ the cosine of one angle.
Compare models under one group only; a set of transforms is completed to the group that it generates. The score does not
see equivariance that permutes channels: the kernels of a group-equivariant network score like random ones.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from transnet import d4
from transnet.errors import ModelError
from transnet.inputs import one_of

Measure = Literal["l2", "relative", "cosine", "pearson"]
ROTATIONS = "r0,r1,r2,r3"


def invariance_score(weight: Tensor, group: str | Iterable[str] = ROTATIONS, measure: Measure = "l2") -> Tensor:
    """Return the score of each output kernel of a convolution's weight; differentiable.

    Use it for a single layer, and `layer_invariance` for a model. A kernel of zeros counts as perfectly invariant.

    Args:
        weight: of shape (O, I, k, k).
        group: names of transforms; the group that they generate is used.
        measure: ``l2``, the paper's IS; ``relative``, IS divided by ‖w‖; ``cosine`` or ``pearson``, the similarity or
            correlation of w with its group mean. The first two are distances, the others rise with invariance.
    """
    one_of("measure", measure, get_args(Measure))
    if weight.ndim != 4 or weight.shape[-1] != weight.shape[-2]:
        raise ModelError(f"shape {tuple(weight.shape)}; the kernels must be square, shape (O, I, k, k)", field="weight")
    mean = group_mean(weight, group).flatten(1)
    kernels = weight.flatten(1)
    if measure in ("l2", "relative"):
        distance = _norm(kernels - mean)
        return distance if measure == "l2" else _ratio(distance, _norm(kernels), otherwise=0.0)
    if measure == "pearson":
        rounding = 8 * torch.finfo(kernels.dtype).eps * _norm(kernels)
        # w and w̄ have the same average, so that the centred w̄ is a projection of the centred w.
        kernels, mean = (values - values.mean(1, keepdim=True) for values in (kernels, mean))
        constant = _norm(kernels) <= rounding  # the rest of such a kernel is noise
        kernels, mean = (values.masked_fill(constant[:, None], 0) for values in (kernels, mean))
    return _ratio(_norm(mean), _norm(kernels), otherwise=1.0)


def group_mean(weight: Tensor, group: str | Iterable[str] = ROTATIONS) -> Tensor:
    """Return w̄, the nearest invariant kernels (Lemma 3)."""
    elements = d4.generate(group)
    return torch.stack([d4.apply(t, weight) for t in elements]).mean(0)


@torch.no_grad()
def layer_invariance(
    model: nn.Module, group: str | Iterable[str] = ROTATIONS, measure: Measure = "l2"
) -> dict[str, Tensor]:
    """Return the score of every kernel, by layer, in the model's order: the data of the paper's Figs. 5 and 6.

    Kernels of 1×1, which are always invariant, and kernels that are not square are left out.
    """
    return {name: invariance_score(weight.detach(), group, measure) for name, weight in kernels(model).items()}


@dataclass(frozen=True)
class LayerScore:
    """The scores of one layer's kernels."""

    mean: float
    std: float | None
    n: int
    random: float  # what kernels of independent normal entries score, with the layer's shape and mean norm


def summarise_layers(model: nn.Module, group: str | Iterable[str], measure: Measure) -> dict[str, LayerScore]:
    """Return mean and spread of each layer's scores, beside those of random kernels."""
    found = {}
    for name, weight in kernels(model).items():
        values = invariance_score(weight.detach(), group, measure)
        random = random_kernel_score(weight.shape[1:], group, "relative" if measure == "l2" else measure)
        if measure == "l2":
            random *= _norm(weight.detach().flatten(1)).mean().item()
        std = values.std().item() if len(values) > 1 else None
        found[name] = LayerScore(values.mean().item(), std, len(values), random)
    return found


def invariance_penalty(
    model: nn.Module, group: str | Iterable[str] = ROTATIONS, layers: Iterable[str] | None = None
) -> Tensor:
    """Return a differentiable scalar in [0, 1] that pulls kernels towards invariance; add it to a loss with a weight.

    It is the mean over layers of the mean over kernels of relative², the share of each kernel's squared norm that is
    not invariant, so it does not depend on the kernels' scale. The paper suggests such a term but does not test it.

    Args:
        model: any model with convolutions.
        group: names of transforms; the group that they generate is used.
        layers: names as in `layer_invariance`; all by default.
    """
    found = kernels(model)
    names = list(found) if layers is None else list(layers)
    unknown = [name for name in names if name not in found]
    if unknown or not names:
        given = f"unknown {', '.join(map(repr, unknown))}" if unknown else "none given"
        raise ModelError(f"{given}; square kernels larger than 1×1 are in {', '.join(found) or 'none'}", field="layers")
    terms = []
    for weight in (found[name] for name in names):
        rest = (weight - group_mean(weight, group)).flatten(1).square().sum(1)
        terms.append(_ratio(rest, weight.flatten(1).square().sum(1), otherwise=0.0).mean())
    return torch.stack(terms).mean()


def random_kernel_score(
    shape: tuple[int, int, int] | torch.Size, group: str | Iterable[str] = ROTATIONS, measure: Measure = "relative"
) -> float:
    """Return the expected score of a kernel of shape (I, k, k) with independent N(0, 1) entries.

    With n entries and invariant kernels of dimension d, ‖w − w̄‖² and ‖w̄‖² are independent χ² of n − d and d degrees.
    So l2 has the mean χ(n − d), relative χ(n − d) / χ(n) ≈ √(1 − d/n), and cosine χ(d) / χ(n), where χ(ν) =
    √2 Γ((ν + 1)/2) / Γ(ν/2) is the mean of a χ distribution. For pearson, centring removes one invariant dimension.
    """
    one_of("measure", measure, get_args(Measure))
    channels, side, _ = shape
    positions = torch.arange(side * side).reshape(side, side)
    orbits = torch.stack([d4.apply(t, positions) for t in d4.generate(group)]).amin(0).unique().numel()
    n, d = channels * side * side, channels * orbits
    if measure == "pearson":
        n, d = n - 1, d - 1
    expected = _chi(n - d) if measure in ("l2", "relative") else _chi(d)
    return expected if measure == "l2" else expected / _chi(n)


def kernels(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of all convolutions with square kernels larger than 1×1, by layer."""
    return {
        name: module.weight
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d) and module.kernel_size[0] == module.kernel_size[1] > 1
    }


def _norm(values: Tensor) -> Tensor:
    return torch.linalg.vector_norm(values, dim=1)


def _ratio(numerator: Tensor, denominator: Tensor, otherwise: float) -> Tensor:
    # The inner where keeps the gradient of a kernel of zeros finite.
    zero = denominator == 0
    return torch.where(zero, otherwise, numerator / torch.where(zero, 1.0, denominator))


def _chi(degrees: int) -> float:
    if degrees <= 0:
        return 0.0
    return math.sqrt(2) * math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2))
