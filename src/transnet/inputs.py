"""What users hand to a TransNet, read and checked: each mistake ends in an error that says what would work.

Values are read only from CPU tensors: on a GPU that would synchronise it and break CUDA graphs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from transnet import d4

Transform = str | tuple[str, Callable[[Tensor], Tensor]]


def find_head(model: nn.Module, head: str | None = None) -> str:
    """Path of the model's last fully connected layer.

    timm's models name it; elsewhere it is the linear layer defined last. That it really is the last to run is
    seen at the first batch.
    """
    kind = type(model).__name__
    linears = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
    if head is None:
        config = getattr(model, "pretrained_cfg", None)
        named = config.get("classifier") if isinstance(config, Mapping) else None
        if isinstance(named, (tuple, list)):
            raise ValueError(f"{kind} has several heads, {' and '.join(named)}; TransNet needs one that ends the model")
        head = named or (linears[-1] if linears else None)
    if head is None:
        raise ValueError(f"{kind} has no nn.Linear, so no fully connected head to replace; give it one as last layer")
    try:
        layer = model.get_submodule(head)
    except AttributeError:
        known = ", ".join(repr(path) for path in linears[-3:]) or "none"
        raise ValueError(f"head: {kind} has no layer {head!r}; its last linear layers are {known}") from None
    if head == "" or not isinstance(layer, nn.Linear):
        raise ValueError(
            f"head: {head!r} of {kind} is {type(layer).__name__}, and an nn.Linear inside the model is needed; "
            f"linear layers: {', '.join(linears[-3:]) or 'none'} (a timm model needs num_classes > 0)"
        )
    if isinstance(layer.weight, nn.parameter.UninitializedParameter):
        raise ValueError(f"head: {head!r} of {kind} is lazy; run one batch through the model first")
    return head


def parse_transforms(
    transforms: str | Iterable[Transform],
) -> tuple[tuple[str, ...], dict[str, Callable[[Tensor], Tensor]]]:
    """Names in order, and the functions of the custom ones."""
    if isinstance(transforms, str):
        return d4.parse(transforms), {}
    names: list[str] = []
    custom: dict[str, Callable[[Tensor], Tensor]] = {}
    for item in transforms:
        if isinstance(item, tuple) and len(item) == 2 and callable(item[1]):
            name, function = item
            if not isinstance(name, str) or not name or "," in name or name in d4.NAMES:
                raise ValueError(
                    f"transforms: {name!r} cannot name a custom transform; D4's names and commas are taken"
                )
            if custom.setdefault(name, function) is not function:
                raise ValueError(f"transforms: {name!r} names two different functions")
            names.append(name)
        else:
            names += d4.parse((item,))
    return tuple(names) or d4.parse(()), custom


def one_of(argument: str, value: Any, known: tuple[str, ...]) -> None:
    """Raise where an option is none of the known ones."""
    if value not in known:
        raise ValueError(f"{argument}: unknown {value!r}; known are {' '.join(known)}")


def readable(x: Tensor) -> bool:
    """Whether looking at the values is free and can be traced."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def check_images(x: Tensor, names: Sequence[str]) -> None:
    """A batch of images that the named transforms can act on."""
    if not isinstance(x, Tensor) or x.ndim != 4:
        given = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"images: {given} was given; a batch of shape (B, C, H, W) is needed")
    square = [name for name in names if name in d4.NAMES and d4.swaps_sides(name)]
    if square and x.shape[-1] != x.shape[-2]:
        raise ValueError(
            f"images of {x.shape[-2]}×{x.shape[-1]}: {' '.join(dict.fromkeys(square))} swap height and width and need "
            "square images; r0 r2 m0 m2 work on any"
        )
    if readable(x) and x.is_floating_point() and not torch.isfinite(x).all():
        raise ValueError("images: the batch holds NaN or infinite values")


def check_targets(logits: Tensor, y: Tensor) -> None:
    """Class indices or probabilities that fit the logits."""
    if logits.ndim != 3:
        raise ValueError(f"logits: shape {tuple(logits.shape)}; (B, heads, K), what net(x) returns, is needed")
    batch, _, k = logits.shape
    if y.shape == (batch,):
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            raise TypeError(f"targets: {y.dtype} of shape ({batch},); class indices must be integers")
        if readable(y) and batch and not 0 <= int(y.min()) <= int(y.max()) < k:
            raise ValueError(f"targets: labels {int(y.min())}…{int(y.max())} with {k} classes; 0…{k - 1} are valid")
    elif y.shape == (batch, k):
        if not y.is_floating_point():
            raise TypeError(f"targets: {y.dtype} of shape {tuple(y.shape)}; probabilities must be floating point")
    else:
        raise ValueError(
            f"targets: shape {tuple(y.shape)}; class indices ({batch},) or probabilities ({batch}, {k}) are needed"
        )
