"""Fold a transform of D4 into a network's weights: Prop. 1 of the paper, made exact.

The paper compiles t into the weights by turning every kernel: h_θ(t(x)) = h_{t⁻¹(θ)}(x). This holds if the strides
fit the sizes. Otherwise the windows of strided layers have to move as well (see ``windows.py``). ``fold`` does both
for one image size and checks the result.

    >>> folded = fold(model, "r1", image_size=32)      # folded(x) == model(r1(x))
"""

import copy
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from transnet import d4
from transnet.errors import ModelError
from transnet.folding.layers import Folded, FoldedCalls, FoldedLayer, LayerChange, replace_class, restore_class
from transnet.folding.trace import Call, Pair, Trace, Visit, describe, find_culprit, same, trace
from transnet.folding.windows import REVERSED, MovedCall, move_call
from transnet.head import copy_module, tensors_in

# These layers become folded layers. In any other module, the calls of convolution and pooling functions are replaced.
_LAYERS = {
    ("torch.nn.modules.conv", "Conv2d"),
    ("torch.nn.modules.pooling", "MaxPool2d"),
    ("torch.nn.modules.pooling", "AvgPool2d"),
    ("timm.layers.conv2d_same", "Conv2dSame"),
}


def fold(model: nn.Module, t: str, image_size: int | tuple[int, int]) -> nn.Module:
    """Return a network that computes ``model(t(x))`` from x in one pass, with the transform inside its weights.

    Use it to ship a head other than the identity head: its users need not know its transform. The network must end in
    layers that ignore directions, such as global pooling and a linear layer. This is Prop. 1, with moved windows for
    the layers that need them. The result is compared with ``model(t(x))`` in float64 on random input.

    The result is tied to ``image_size`` and raises at any other size, also after it was compiled, exported or traced.
    The exceptions are r0, and m3 if all layers are square, because these move no windows at any size. The attribute
    ``fold_config`` holds the transform and the size. Layers that an evaluation pass does not reach, such as
    auxiliary heads, are not changed.

    Args:
        model: the network, which is not changed. A folded network may be folded again.
        t: an element of D4, ``r0`` … ``m3``.
        image_size: the side of the square images, or (height, width).

    Returns:
        A new network of the same class, dtype, device and mode.

    Raises:
        ModelError: if t cannot be folded exactly. The message names the layer and the reason.
    """
    if t not in d4.NAMES:
        raise ModelError(f"{t!r} was given; one of {' '.join(d4.NAMES)} is needed", field="t")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: {type(model).__name__} was given; an nn.Module is needed")
    size = _image_size(image_size, t)
    model = copy_module(model)
    nested = next((name for name, m in model.named_modules() if name and hasattr(m, "fold_config")), None)
    if nested is not None:
        raise ModelError(f"layer {nested!r} is a folded network inside another; fold the plain one")
    if hasattr(model, "fold_config"):
        t = d4.compose(_unfold(model, size), t)
    kernels = () if t == "r0" else _fold_checked(model, t, size)
    model.fold_config = {"transform": t, "image_size": list(size)}  # type: ignore[assignment]
    model.fold_kernels = kernels  # type: ignore[assignment]
    return model


def _image_size(image_size: int | Sequence[int], t: str) -> Pair:
    sides = image_size if isinstance(image_size, (tuple, list)) else (image_size, image_size)
    try:
        height, width = map(operator.index, sides)
    except (TypeError, ValueError):
        height = width = 0
    if min(height, width) < 1 or isinstance(image_size, bool):
        raise ModelError(f"{image_size!r} was given; give the side, or (height, width)", field="image_size")
    if height != width and d4.swaps_sides(t):
        raise ModelError(f"{height}×{width} was given; {t} swaps them and needs square images", field="image_size")
    return height, width


def _unfold(model: nn.Module, size: Pair) -> str:
    """Undo a fold in place, so that a second one starts from the plain network, and return its transform."""
    config: dict[str, Any] = model.fold_config  # type: ignore[assignment]
    if config["image_size"] != list(size):
        known = _times(config["image_size"])
        raise ModelError(f"{_times(size)} was given, but the network is already folded for {known}", field="image_size")
    _turn_kernels(model, model.fold_kernels, config["transform"])  # type: ignore[arg-type]
    for module in model.modules():
        if isinstance(module, Folded):
            restore_class(module)
    return str(config["transform"])


def _fold_checked(model: nn.Module, t: str, size: Pair) -> tuple[str, ...]:
    """Fold ``model`` in place after folding and checking a float64 copy; return the names of the turned kernels."""
    plain = _check_copy(model)
    x, seen = _trace(plain, t, size)
    want = [*tensors_in([seen.output])]
    if not all(bool(y.isfinite().all()) for y in want):
        raise ModelError("the network's output on random images is not finite, so that a fold cannot be checked")
    kernels, layers = _find_changes(plain, seen, t, size)
    folded = copy.deepcopy(plain)
    _change(folded, kernels, layers, t)
    try:
        with torch.no_grad():
            exact = all(same(got, y) for got, y in zip(tensors_in([folded(x)]), want, strict=True))
    except RuntimeError:  # maps whose sizes no longer match
        exact = False
    if not exact:
        raise ModelError(f"{t} cannot be folded exactly into {find_culprit(plain, folded, x, t)}")
    _change(model, kernels, layers, t)
    return kernels


def _check_copy(model: nn.Module) -> nn.Module:
    """Return a float64 copy in evaluation mode."""
    plain = copy.deepcopy(model).eval()
    if any(tensor.device.type == "mps" for tensor in plain.parameters()):  # mps has no float64
        plain = plain.cpu()
    plain = plain.double()
    source = torch.Generator().manual_seed(0)
    for parameter in plain.parameters():
        # Zeros (a fresh head, the last scale of a residual branch) would hide errors in the layers before them.
        if not parameter.data.any():
            parameter.data.copy_(torch.randn(parameter.shape, generator=source, dtype=torch.float64))
    return plain


def _trace(plain: nn.Module, t: str, size: Pair) -> tuple[Tensor, Trace]:
    """Run the plain network on t(x) for a random x."""
    first = next((m.in_channels for m in plain.modules() if isinstance(m, nn.Conv2d)), 3)
    failed = None
    # Something before the first convolution may change the number of channels, as space-to-depth does.
    for channels in dict.fromkeys((first, 3)):
        x = torch.randn(2, channels, *size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        x = x.to(_device(plain))
        try:
            return x, trace(plain, d4.apply(t, x))
        except (RuntimeError, AssertionError, ValueError, TypeError, IndexError) as error:
            failed = failed or error
    message = str(failed) or type(failed).__name__
    raise ModelError(f"the network does not run on {first}×{_times(size)} images: {message}") from failed


def _find_changes(plain: nn.Module, seen: Trace, t: str, size: Pair) -> tuple[tuple[str, ...], dict[str, LayerChange]]:
    """Return the names of the kernels to turn, and the layers to change: those that move windows, and the first."""
    stored = {id(tensor): name for name, tensor in [*plain.named_parameters(), *plain.named_buffers()]}
    purpose = f"{t} is folded into this network for {_times(size)} images"
    kernels: list[str] = []
    layers: dict[str, LayerChange] = {}
    for visit in seen.visits:
        for call, _ in visit.calls:
            kernels += _kernels(plain, visit.name, call, stored)
        mixin, calls = _move_windows(plain, visit, t)
        change = layers.setdefault(visit.name, LayerChange(mixin, purpose))
        change.expected.append({key for key, moved in calls if moved is not None})
        for key, moved in calls:
            if change.calls.setdefault(key, moved) != moved:
                raise ModelError(
                    f"{t} cannot be folded exactly into {describe(plain, visit.name)}: two calls of {key[0]} "
                    "look the same but would have to change differently; make them layers"
                )
    layers = {name: change for name, change in layers.items() if any(change.calls.values())}
    for name, change in layers.items():
        # The maps of a module with code of its own may have their channels last, so that their size is not checked.
        layers[name] = replace(change, sizes=tuple(change.calls) if change.mixin is FoldedLayer else ())
    if any(REVERSED[t]):
        # Even if no window moves at this size, windows may have to move at another one.
        entry = next(iter(seen.functions), "")  # the first module whose own code computes something from the image
        sizes = [visit.size and _turned(visit.size, t) for visit in seen.visits if visit.name == entry]
        if None in sizes:  # its first argument is no map
            entry, sizes = "", [size]
        change = layers.get(entry, LayerChange(Folded, purpose))
        layers[entry] = replace(change, sizes=tuple(dict.fromkeys(size for size in sizes if size)))
    return tuple(dict.fromkeys(kernels)), layers


def _kernels(plain: nn.Module, owner: str, call: Call, stored: dict[int, str]) -> list[str]:
    """Return the names of the stored tensors that a convolution's kernel comes from."""
    weight = call.tensors.get("weight")
    if weight is None or tuple(weight.shape[-2:]) == (1, 1):
        return []
    if id(weight) in stored:
        return [stored[id(weight)]]
    # The kernel is computed from a stored one, as in weight standardisation: the stored one is turned.
    own = plain.get_submodule(owner)
    tensors = [*own.named_parameters(owner, recurse=False), *own.named_buffers(owner, recurse=False)]
    found = [name for name, tensor in tensors if tensor.ndim == 4 and tensor.shape[-2:] == weight.shape[-2:]]
    if not found:
        advice = "a parametrization can be removed with torch.nn.utils.parametrize.remove_parametrizations"
        raise ModelError(f"{describe(plain, owner)} computes its kernel from something that is not stored; {advice}")
    return found


def _move_windows(plain: nn.Module, visit: Visit, t: str) -> tuple[type[Folded], list[tuple[Any, MovedCall | None]]]:
    """Return the moved calls of one visit of a module, and the base class that makes them."""
    kind = type(plain.get_submodule(visit.name))
    if (kind.__module__, kind.__name__) in _LAYERS and visit.size is not None and visit.calls:
        *before, (call, out) = visit.calls
        outer = before[0][0] if before else None
        return FoldedLayer, [(_turned(visit.size, t), move_call(call, out, t, outer))]
    return FoldedCalls, [
        (replace(call, size=_turned(call.size, t)).key, move_call(call, out, t)) for call, out in visit.calls
    ]


def _change(model: nn.Module, kernels: Sequence[str], layers: dict[str, LayerChange], t: str) -> None:
    _turn_kernels(model, kernels, d4.inverse(t))
    for name, change in layers.items():
        replace_class(model.get_submodule(name), change, _device(model))


def _turn_kernels(model: nn.Module, names: Sequence[str], t: str) -> None:
    for name in names:
        owner, _, own = name.rpartition(".")
        tensor: Tensor = getattr(model.get_submodule(owner), own)
        tensor.data = d4.keep_format(d4.apply(t, tensor.data).contiguous(), tensor.data)


def _device(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _turned(size: Pair, t: str) -> Pair:
    return (size[1], size[0]) if d4.swaps_sides(t) else size


def _times(size: Sequence[int]) -> str:
    return "×".join(str(side) for side in size)
