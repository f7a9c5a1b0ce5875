"""Layers of a folded network: the plain layers, with their windows moved and the sizes of their maps checked.

A folded layer is the plain layer with its class replaced by a subclass, so that parameters, hooks and references to
the module stay as they are. A layer with moved windows has a buffer ``folded_pads`` with one row (height, width, left,
right, top, bottom) for every moved call. Therefore a strict load of its state dict into the plain network fails, and so
does a load into a network that was folded differently.

The checks are part of ``forward``, so that every way to trace the network keeps them or refuses other sizes.
"""

from dataclasses import asdict, dataclass, field
from functools import cache, wraps
from inspect import signature
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from transnet.errors import ModelError
from transnet.folding.trace import Pair, map_size, read_call
from transnet.folding.windows import MovedCall, Pads


def call_moved(func: Any, x: Tensor, moved: MovedCall, **tensors: Tensor | None) -> Tensor:
    """Carry out a moved call."""
    y: Tensor = func(_pad_or_crop(x, moved.pads, moved.mode, moved.value), **tensors, **moved.options)
    if moved.kept is not None:
        y = y[..., : moved.kept[0], : moved.kept[1]]
    if moved.counted is None:
        return y
    ones = F.pad(x.new_ones(1, 1, *x.shape[-2:]), moved.counted, value=1.0)
    rest = [pad - border for pad, border in zip(moved.pads, moved.counted)]
    # A window without a real pixel has the sum 0, and torch calls that average 0.
    return y / func(F.pad(ones, rest), **moved.options).clamp(min=1)


def _pad_or_crop(x: Tensor, pads: Pads, mode: str, value: float) -> Tensor:
    if not any(pads):
        return x
    if mode == "constant" and max(pads) > 0:
        return F.pad(x, pads, value=value)
    if max(pads) > 0:
        x = F.pad(x, [max(pad, 0) for pad in pads], mode=mode)
    # A crop alone is a view, but torch's pad would copy.
    left, right, top, bottom = (min(pad, 0) for pad in pads)
    return x[..., -top : bottom or None, -left : right or None]


@fx.wrap  # type: ignore[untyped-decorator]  # fx records this as one call, because it cannot record a condition
def check_size(x: Any, sizes: tuple[Pair, ...], purpose: str) -> Tensor:
    """Return the map ``x``, or raise if its (height, width) is not one that the layer gets at the fold's image size."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{purpose}; it needs a map as the first argument, not {type(x).__name__}")
    height, width = map_size(x)
    if (height, width) not in sizes:
        known = " or ".join(f"{h}×{w}" for h, w in sizes)
        problem = f"a layer that then gets {known} pixels got {height}×{width}"
        raise ModelError(f"{purpose}; {problem}; fold the plain network again with the new image_size")
    if torch.jit.is_tracing():  # type: ignore[attr-defined]
        # A jit trace keeps no condition, but it keeps these two views, which fail at any other size.
        return x.unflatten(-2, (height,)).unflatten(-1, (width,))
    return x


@dataclass(frozen=True)
class LayerChange:
    """How to turn one plain layer into a folded one."""

    mixin: "type[Folded]"
    purpose: str  # the transform and the image size of the fold, for messages
    sizes: tuple[Pair, ...] = ()  # of its maps, if they are checked
    # By the input's size for layers, and by `Call.key` for functions; None if the call stays as it is.
    calls: dict[Any, MovedCall | None] = field(default_factory=dict)
    expected: list[set[Any]] = field(default_factory=list)  # the keys of the calls that move, for each forward


class Folded(nn.Module):
    """A layer of a folded network that checks the size of its maps. `replace_class` makes its subclasses."""

    fold_change: LayerChange

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # The subclass is made at run time, so copies and pickles name the classes that it is made of.
        return _revive, type(self).__bases__, self.__getstate__()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        given = state_dict.get(f"{prefix}folded_pads")
        pads = self._buffers.get("folded_pads")
        if given is not None and pads is not None and not torch.equal(given.to(pads), pads):
            problem = f"the weights were folded with {given.tolist()}, this network with {pads.tolist()}"
            args[-1].append(
                f"{prefix}folded_pads: {problem}; load them into a fold of the same transform and image size"
            )
        super()._load_from_state_dict(state_dict, prefix, *args)


class FoldedLayer(Folded):
    """A convolution or pooling layer with moved windows, with one call for each size of its maps."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply t⁻¹ to the plain layer's output on t(x)."""
        moved = self.fold_change.calls[map_size(x)]
        if moved is None:
            return super().forward(x)  # type: ignore[no-any-return]
        if isinstance(self, nn.Conv2d):
            return call_moved(F.conv2d, x, moved, weight=self.weight, bias=self.bias)
        return call_moved(F.max_pool2d if isinstance(self, nn.MaxPool2d) else F.avg_pool2d, x, moved)


class FoldedCalls(Folded):
    """A module whose own code calls convolution, pooling or padding functions, with those calls replaced."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the plain module's code, and replace its calls while it runs."""
        replacing = _ReplaceCalls(self.fold_change.calls)
        with replacing:
            output = super().forward(*args, **kwargs)
        if replacing.met not in self.fold_change.expected and not _symbolic(args, kwargs):
            raise RuntimeError(f"{type(self).__name__} did not make the calls it was folded for; run it uncompiled")
        return output


class FoldedUncompiledCalls(FoldedCalls):
    """The same with padding among the calls. A mode does not see padding in compiled code, so this is not compiled."""


def replace_class(module: nn.Module, change: LayerChange, device: torch.device) -> None:
    """Turn a plain module into a folded one, in place."""
    moved = {key: call for key, call in change.calls.items() if call is not None}
    if moved:
        sizes = [key if change.mixin is FoldedLayer else key[1] for key in moved]
        rows = [[*size, *call.frame] for size, call in zip(sizes, moved.values())]
        module.register_buffer("folded_pads", torch.tensor(rows, device=device))
    mixin = FoldedUncompiledCalls if any(key[0] == "pad" for key in moved) else change.mixin
    module.fold_change = change  # type: ignore[assignment]
    module.__class__ = _subclass(mixin, type(module))  # type: ignore[arg-type]


def restore_class(module: Folded) -> None:
    """Turn a folded module back into the plain one, in place."""
    del module.fold_change
    module._buffers.pop("folded_pads", None)
    module.__class__ = type(module).__bases__[1]


class _ReplaceCalls(TorchFunctionMode):
    def __init__(self, calls: dict[Any, MovedCall | None]) -> None:
        super().__init__()
        self.calls = calls
        self.met: set[Any] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _symbolic(args, kwargs):
            # fx records the calls without knowing a size, so that the moved call is looked up when the graph runs.
            kind = getattr(func, "__name__", "")
            known = {key: asdict(moved) for key, moved in self.calls.items() if moved and key[0] == kind}
            return call_in_graph(kind, known, args, kwargs) if known else func(*args, **kwargs)
        found = read_call(func, args, kwargs)
        moved = None if found is None else self.calls.get(found[1].key)
        if found is None or moved is None:
            return func(*args, **kwargs)
        x, call = found
        self.met.add(call.key)
        return call_moved(func, x, moved, **call.tensors)


def _symbolic(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(isinstance(value, fx.Proxy) for value in (*args, *kwargs.values()))


@fx.wrap  # type: ignore[untyped-decorator]
def call_in_graph(
    kind: str, moved_calls: dict[Any, dict[str, Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run a call in an fx graph, as a moved call if ``moved_calls`` has its fields."""
    func = getattr(F, kind)
    found = read_call(func, args, kwargs)
    if found is None or found[1].key not in moved_calls:
        return func(*args, **kwargs)
    x, call = found
    return call_moved(func, x, MovedCall(**moved_calls[call.key]), **call.tensors)


@cache
def _subclass(mixin: type[Folded], plain: type[nn.Module]) -> type[nn.Module]:
    first = next(iter([*signature(plain.forward).parameters][1:]), "")

    @wraps(plain.forward)  # fx and jit.trace read the names of the arguments
    def forward(self: Folded, *args: Any, **kwargs: Any) -> Any:
        sizes, purpose = self.fold_change.sizes, self.fold_change.purpose
        if sizes and args:
            args = (check_size(args[0], sizes, purpose), *args[1:])
        elif sizes:
            kwargs[first] = check_size(kwargs.get(first), sizes, purpose)
        return super(cls, self).forward(*args, **kwargs)  # type: ignore[arg-type]

    # fx decides by the module's name whether it looks inside: a folded layer is opaque if the plain one is.
    names: dict[str, Any] = {"__module__": plain.__module__, "__doc__": plain.__doc__}
    names["forward"] = torch.compiler.disable(forward) if mixin is FoldedUncompiledCalls else forward
    cls = type(f"Folded{plain.__name__}", (mixin, plain), names)
    return cls


def _revive(mixin: type[Folded], plain: type[nn.Module]) -> nn.Module:
    cls = _subclass(mixin, plain)  # type: ignore[arg-type]
    return cls.__new__(cls)
