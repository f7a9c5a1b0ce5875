"""Validate user input. Every error states what would work.

Values are checked for CPU tensors only: reading them from a GPU would synchronise it and break CUDA graphs. Under
compilers, tracers and `torch.func.vmap`, and on the meta device, tensors have shapes but no values to check.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from transnet import d4
from transnet.errors import ModelError

EvalOutput = Literal["full", "pruned", "heads"]
Transform = str | tuple[str, Callable[[Tensor], Tensor]]

# torch ignores the label -100 by default. No label is ignored here, so that a wrong one fails in compiled code too.
NO_LABEL = -(2**62)


def one_of(argument: str, value: Any, known: tuple[str, ...]) -> None:
    """Raise if an option is none of the known ones."""
    if value not in known:
        raise ModelError(f"unknown {value!r}; known are {' '.join(known)}", field=argument)


def parse_transforms(
    transforms: str | Iterable[Transform],
) -> tuple[tuple[str, ...], dict[str, Callable[[Tensor], Tensor]]]:
    """Return the names in order, and the functions of the custom transforms."""
    if isinstance(transforms, str) or not isinstance(transforms, Iterable):
        return d4.parse(transforms), {}
    names: list[str] = []
    custom: dict[str, Callable[[Tensor], Tensor]] = {}
    for item in transforms:
        if not (isinstance(item, tuple) and len(item) == 2 and callable(item[1])):
            names += d4.parse((item,))
            continue
        name, function = item
        if not isinstance(name, str) or not name or "," in name or name in d4.NAMES:
            problem = "cannot name a custom transform; D4's names and commas are taken"
            raise ModelError(f"{name!r} {problem}", field="transforms")
        if custom.setdefault(name, function) != function:
            raise ModelError(f"{name!r} names two different functions", field="transforms")
        names.append(name)
    return tuple(names) or d4.parse(()), custom


def check_eval_output(value: Any, names: tuple[str, ...]) -> None:
    """Raise if a network with the named heads cannot return this output in evaluation mode."""
    one_of("eval_output", value, get_args(EvalOutput))
    if value == "pruned" and "r0" not in names:
        given = f"'pruned' is the head of r0, which is not among {' '.join(names)}"
        raise ModelError(f"{given}; add r0, or use 'full' or 'heads'", field="eval_output")


def head_indices(names: str | Iterable[str], known: tuple[str, ...]) -> tuple[int, ...]:
    """Return the indices of the named heads; a repeated name means its first head."""
    if not isinstance(names, Iterable):
        raise TypeError(f"heads: {names!r} was given; names are needed, of {' '.join(known)}")
    names = tuple(n.strip() for n in names.split(",")) if isinstance(names, str) else tuple(names)
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        problem = f"unknown {unknown[0]!r}" if unknown else "none given"
        raise ModelError(f"{problem}; this network has {' '.join(known)}", field="heads")
    return tuple(known.index(name) for name in names)


def check_prunable(name: str, known: tuple[str, ...], *, custom: bool, sized: bool) -> None:
    """Raise if a network cannot be pruned to the named head."""
    if name not in known:
        others = [t for t in dict.fromkeys(known) if t in d4.NAMES]
        calls = " or ".join("prune()" if t == "r0" else f"prune({t!r}, image_size=…)" for t in others)
        works = f"{calls} would work" if calls else "only heads of D4's transforms can be pruned to"
        raise ModelError(f"prune: there is no head {name!r} among {' '.join(known)}; {works}")
    if custom:
        raise ModelError(f"prune: {name!r} is a custom transform; only D4's can be folded into the weights")
    if name != "r0" and not sized:
        raise ModelError(f"prune({name!r}) needs it, because a folded network is tied to one size", field="image_size")


def check_transformed(name: str, x: Tensor, y: Any) -> None:
    """Raise if a custom transform did not turn the batch ``x`` into a batch of the same shape."""
    if not isinstance(y, Tensor) or y.shape != x.shape:
        given = f"transform {name!r} turned a batch of shape {tuple(x.shape)} into {_describe(y)}"
        raise ModelError(f"{given}; it must return a batch of the same shape")


def check_images(x: Tensor, names: Sequence[str]) -> None:
    """Raise unless ``x`` is a batch of images that the named transforms can act on."""
    square = [name for name in dict.fromkeys(names) if name in d4.NAMES and d4.swaps_sides(name)]
    if isinstance(x, torch.fx.Proxy):  # no shape yet: the checks become part of the graph
        torch._assert(x.ndim == 4, "images: a batch of shape (B, C, H, W) is needed")
        if square:
            torch._assert(x.shape[-1] == x.shape[-2], f"images: {' '.join(square)} need square images")
        return
    if not isinstance(x, Tensor) or x.ndim != 4:
        raise ModelError(f"{_describe(x)} was given; a batch of shape (B, C, H, W) is needed", field="images")
    if square and x.shape[-1] != x.shape[-2]:
        swap = "swaps height and width and needs" if len(square) == 1 else "swap height and width and need"
        raise ModelError(
            f"images of {x.shape[-2]}×{x.shape[-1]}: {' '.join(square)} {swap} square images; r0 r2 m0 m2 work on any"
        )
    # The sum is quick, and finite unless a value is not or it overflows.
    if x.is_floating_point() and _certain(x, lambda: ~x.sum().isfinite()) and _certain(x, lambda: ~x.isfinite().all()):
        raise ModelError("the batch holds NaN or infinite values", field="images")


def check_scaled(x: Tensor, error: RuntimeError) -> None:
    """Explain the model's error if the images are integers, which only a model that scales its images takes."""
    if not x.is_floating_point() and not isinstance(error, torch.OutOfMemoryError):
        advice = "the model takes floating-point images, such as x.float() / 255"
        raise ModelError(f"{x.dtype} was given; {advice}", field="images") from error


def check_criterion(logits: Tensor, criterion: Any, label_smoothing: float, weighted: bool, reduction: str) -> None:
    """Raise if a criterion cannot be called, or if it is given together with settings of the cross-entropy."""
    _check_logits(logits)
    if isinstance(criterion, type) or not callable(criterion):
        raise TypeError(f"criterion: {criterion!r} was given; a callable is needed, such as nn.CrossEntropyLoss()")
    settings = {"label_smoothing": label_smoothing != 0, "sample_weight": weighted, "reduction": reduction != "mean"}
    given = [name for name, changed in settings.items() if changed]
    if given:
        raise ModelError(f"give {' and '.join(given)} to the criterion itself", field="criterion")


def mean_loss(value: Tensor, batch: int) -> Tensor:
    """Return the mean of a criterion's result for a batch, which is a scalar or one value per image."""
    if isinstance(value, Tensor) and value.is_floating_point() and (value.ndim == 0 or value.shape == (batch,)):
        return value.mean()
    needed = f"one floating-point value, or one per image, ({batch},), is needed"
    raise ModelError(f"it returned {_describe(value)}; {needed}", field="criterion")


def check_targets(logits: Tensor, y: Tensor, label_smoothing: float, sample_weight: Tensor | None) -> None:
    """Raise if targets or weights do not fit the logits, or if the cross-entropy would be meaningless for them."""
    _check_logits(logits)
    for name, value in (("targets", y), ("sample_weight", y if sample_weight is None else sample_weight)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name}: a tensor is needed, {type(value).__name__} was given")
    if not 0 <= label_smoothing <= 1:
        raise ModelError(f"{label_smoothing} was given; 0 to 1 is needed", field="label_smoothing")
    batch, _, k = logits.shape
    if k == 1:
        raise ModelError("a single class always has the loss 0; use criterion=nn.BCEWithLogitsLoss()", field="logits")
    if y.shape == (batch,):
        _check_indices(y, k)
    elif y.shape == (batch, k):
        _check_probabilities(y)
    else:
        needed = f"class indices ({batch},) or probabilities ({batch}, {k}) are needed"
        raise ModelError(f"shape {tuple(y.shape)}; {needed}", field="targets")
    if sample_weight is None:
        return
    if sample_weight.shape != (batch,):
        given = tuple(sample_weight.shape)
        raise ModelError(f"shape {given}; one per image, ({batch},), is needed", field="sample_weight")
    if _certain(sample_weight, lambda: ~((sample_weight.sum() > 0) & (sample_weight >= 0).all())):
        raise ModelError("weights of 0 or more with a positive sum are needed", field="sample_weight")


def _check_logits(logits: Tensor) -> None:
    if not isinstance(logits, Tensor):
        raise TypeError(f"logits: a tensor is needed, {type(logits).__name__} was given")
    if logits.ndim != 3:
        needed = "(B, heads, K) is needed: net.logits(x), which net(x) returns in training mode only"
        raise ModelError(f"shape {tuple(logits.shape)} was given; {needed}", field="logits")


def _check_indices(y: Tensor, k: int) -> None:
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise TypeError(f"targets: {y.dtype} of shape {tuple(y.shape)}; class indices must be integers")
    if _certain(y, lambda: torch.any((y.long() < 0) | (y.long() >= k))):
        given = f"labels {int(y.long().min())}…{int(y.long().max())}; 0…{k - 1} are valid"
        raise ModelError(f"{given}, others need nn.CrossEntropyLoss(ignore_index=…) as criterion", field="targets")


def _check_probabilities(y: Tensor) -> None:
    if not y.is_floating_point():
        raise TypeError(f"targets: {y.dtype} of shape {tuple(y.shape)}; probabilities must be floating point")
    sums = y.sum(1, dtype=torch.promote_types(y.dtype, torch.float32))
    wrong = ~((sums - 1).abs() <= 1e-2).all()
    if y.is_cuda or torch.compiler.is_dynamo_compiling():  # checked when the graph runs, without synchronising
        torch._assert_async(~wrong, "targets: rows must sum to 1, or use a criterion")
    if _certain(y, lambda: ~(y >= 0).all()):
        raise ModelError("probabilities must be 0 or more, and not NaN", field="targets")
    if _certain(y, lambda: wrong):
        given = f"rows sum to {float(sums.min()):.3g}…{float(sums.max()):.3g}; probabilities must sum to 1"
        raise ModelError(f"{given}; for several labels use criterion=nn.BCEWithLogitsLoss()", field="targets")


def traced(x: Tensor) -> bool:
    """Return whether the forward is being compiled, exported, or traced by `torch.jit` or fx."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None or isinstance(x, torch.fx.Proxy)


def _certain(x: Tensor, condition: Callable[[], Tensor]) -> bool:
    """Return whether a condition on the values of ``x`` is true; False if they cannot be read at no cost."""
    if x.device.type != "cpu" or traced(x):
        return False
    try:
        return bool(condition())
    except RuntimeError:  # under vmap, or for a fake tensor
        return False


def _describe(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__
