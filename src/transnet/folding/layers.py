"""Layers of a folded network: the plain layers, with their windows moved and the sizes of their maps checked.

A folded layer is the plain layer with its class replaced by a subclass made for it. Parameters, hooks and all
references to the module stay as they are, and ``isinstance`` still holds. A layer with moved windows has a buffer
``folded_pads`` with one row (height, width, left, right, top, bottom) for every moved call. Therefore a strict load
of its state dict into the plain network fails, and so does a load into a network that was folded differently.

The checks are part of ``forward``, so that every way to trace the network keeps them or refuses other sizes.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, wraps
from inspect import signature
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from transnet.errors import ModelError
from transnet.folding.calls import Pair, map_size, read_call
from transnet.folding.windows import MovedCall, Pads


def call_moved(func: Any, x: Tensor, change: MovedCall, **tensors: Tensor | None) -> Tensor:
    """Carry out a moved call."""
    seen = _pad_or_crop(x, change.pads, change.mode, change.value)
    if change.step != (1, 1):
        seen = seen[..., :: change.step[0], :: change.step[1]]
    y: Tensor = func(seen, **tensors, **change.options)
    if change.kept is not None:
        (top, height), (left, width) = change.kept
        y = y[..., top : top + height, left : left + width]
    if change.counted is None:
        return y
    ones = F.pad(x.new_ones(1, 1, *x.shape[-2:]), change.counted, value=1.0)
    rest = [pad - border for pad, border in zip(change.pads, change.counted)]
    # A window without a real pixel has the sum 0, and torch calls that average 0.
    return y / func(F.pad(ones, rest), **change.options).clamp(min=1)


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
    """Return the map ``x``, or raise if its size is not one of ``sizes``.

    Args:
        x: the input of a layer of a folded network.
        sizes: the (height, width) of the layer's maps at the image size of the fold.
        purpose: the transform and the image size of the fold, for the message.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{purpose}; it needs a map as the first argument, not {type(x).__name__}")
    given = map_size(x)
    for size in sizes:
        if given == size:
            # A jit trace keeps no condition, but it keeps these two views, which fail at any other size.
            tracing = torch.jit.is_tracing()  # type: ignore[attr-defined]
            return x.unflatten(-2, size[:1]).unflatten(-1, size[1:]) if tracing else x
    known = " or ".join(f"{h}×{w}" for h, w in sizes)
    raise ModelError(
        f"{purpose}; a layer that then gets {known} pixels got {given[0]}×{given[1]}; "
        "fold the plain network again with the new image_size"
    )


Calls = list[tuple[Any, MovedCall | None]]  # by the input's size for layers, by `Call.key` for functions


class Folded(nn.Module):
    """A layer of a folded network that checks the size of its maps. ``replace_class`` makes its subclasses."""

    plain_class: type[nn.Module]
    mixin: "type[Folded]"
    folded_sizes: tuple[Pair, ...]
    folded_purpose: str
    folded_pads: Tensor

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the plain module."""
        return super().forward(*args, **kwargs)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # The subclass is made at run time, so copies and pickles name the classes that it is made of.
        return _revive, (self.mixin, self.plain_class), self.__getstate__()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        given = state_dict.get(f"{prefix}folded_pads")
        pads = self._buffers.get("folded_pads")
        if given is not None and pads is not None and not torch.equal(given.to(pads), pads):
            args[-1].append(
                f"{prefix}folded_pads: the weights were folded with {given.tolist()}, this network with "
                f"{pads.tolist()}; load them into a fold of the same transform and image size"
            )
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """Return the plain layer's description, the sizes of its maps, and the pads of its moved windows."""
        frames = [f"{h}×{w}" for h, w in self.folded_sizes]
        if "folded_pads" in self._buffers:
            frames = [f"{h}×{w} with pads {tuple(pads)}" for h, w, *pads in self.folded_pads.tolist()]
        return ", ".join(filter(None, [super().extra_repr(), f"folded: {'; '.join(frames)}"]))


class FoldedLayer(Folded):
    """A convolution or pooling layer with moved windows, with one ``MovedCall`` for each size of its maps."""

    moved_calls: dict[Pair, MovedCall | None]

    def forward(self, x: Tensor) -> Tensor:
        """Apply t⁻¹ to the plain layer's output on t(x)."""
        change = self.moved_calls[map_size(x)]
        if change is None:
            return super().forward(x)  # type: ignore[no-any-return]
        if isinstance(self, nn.Conv2d):
            return call_moved(F.conv2d, x, change, weight=self.weight, bias=self.bias)
        return call_moved(F.max_pool2d if isinstance(self, nn.MaxPool2d) else F.avg_pool2d, x, change)


class FoldedCalls(Folded):
    """A module whose own code calls convolution, pooling or padding functions, with those calls replaced."""

    moved_calls: dict[tuple[Any, ...], MovedCall | None]
    expected: list[set[tuple[Any, ...]]]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the plain module's code, and replace its calls while it runs."""
        met: set[tuple[Any, ...]] = set()
        with _ReplaceCalls(self.moved_calls, met):
            output = super().forward(*args, **kwargs)
        if met not in self.expected and not _symbolic(args, kwargs):
            raise RuntimeError(f"{type(self).__name__} did not make the calls it was folded for; run it uncompiled")
        return output


class FoldedUncompiledCalls(FoldedCalls):
    """The same with padding among the calls. A mode does not see padding in compiled code, so this is not compiled."""


@dataclass
class LayerChange:
    """The change of one layer: its new base class, its moved calls at each visit, and the sizes of its maps."""

    mixin: type[Folded]
    visits: list[Calls]
    sizes: tuple[Pair, ...]


def replace_class(module: nn.Module, change: LayerChange, purpose: str, device: torch.device) -> None:
    """Turn a plain module into a folded one, in place."""
    calls = {key: call for visit in change.visits for key, call in visit}
    moved = {key: call for key, call in calls.items() if call is not None}
    if moved:
        rows = [[*_size_of(key), *call.frame] for key, call in moved.items()]
        module.register_buffer("folded_pads", torch.tensor(rows, device=device))
    module.moved_calls = calls  # type: ignore[assignment]
    module.expected = [{key for key, _ in visit if key in moved} for visit in change.visits]  # type: ignore[assignment]
    module.folded_sizes = change.sizes  # type: ignore[assignment]
    module.folded_purpose = purpose  # type: ignore[assignment]
    module.__class__ = _subclass(change.mixin, type(module))  # type: ignore[arg-type]


def restore_class(module: Folded) -> None:
    """Turn a folded module back into the plain one, in place."""
    for name in ("moved_calls", "expected", "folded_sizes", "folded_purpose", "folded_pads"):
        if hasattr(module, name):
            delattr(module, name)
    module.__class__ = module.plain_class  # type: ignore[assignment]


class _ReplaceCalls(TorchFunctionMode):
    def __init__(self, moved_calls: dict[tuple[Any, ...], MovedCall | None], met: set[tuple[Any, ...]]) -> None:
        super().__init__()
        self.moved_calls = moved_calls
        self.met = met

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _symbolic(args, kwargs):
            # fx records the calls without knowing a size, so that the moved call is looked up when the graph runs.
            kind = getattr(func, "__name__", "")
            known = {key: asdict(change) for key, change in self.moved_calls.items() if change and key[0] == kind}
            return call_in_graph(kind, known, args, kwargs) if known else func(*args, **kwargs)
        found = read_call(func, args, kwargs)
        if found is not None:
            x, call = found
            change = self.moved_calls.get(call.key)
            if change is not None:
                self.met.add(call.key)
                return call_moved(func, x, change, **call.tensors)
        return func(*args, **kwargs)


def _symbolic(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(isinstance(value, fx.Proxy) for value in (*args, *kwargs.values()))


@fx.wrap  # type: ignore[untyped-decorator]
def call_in_graph(
    kind: str, moved_calls: dict[Any, dict[str, Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run one call in an fx graph, as a moved call if ``moved_calls`` has one; its values are fields of `MovedCall`."""
    func = getattr(F, kind)
    found = read_call(func, args, kwargs)
    if found is None or found[1].key not in moved_calls:
        return func(*args, **kwargs)
    x, call = found
    return call_moved(func, x, MovedCall(**moved_calls[call.key]), **call.tensors)


@cache
def _subclass(mixin: type[Folded], plain: type[nn.Module]) -> type[nn.Module]:
    forward = _checked_forward(mixin, plain)
    if mixin is FoldedUncompiledCalls:
        forward = torch.compiler.disable(forward)
    names = {
        "plain_class": plain,
        "mixin": mixin,
        "forward": forward,
        # fx decides by the module's name whether it looks inside: a folded layer is opaque if the plain one is.
        "__module__": plain.__module__,
        "__doc__": plain.__doc__,
    }
    return type(f"Folded{plain.__name__}", (mixin, plain), names)


def _checked_forward(mixin: type[Folded], plain: type[nn.Module]) -> Callable[..., Any]:
    first = next(iter([*signature(plain.forward).parameters][1:]), "")

    @wraps(plain.forward)  # fx and jit.trace read the names of the arguments
    def forward(self: Folded, *args: Any, **kwargs: Any) -> Any:
        if self.folded_sizes and args:
            args = (check_size(args[0], self.folded_sizes, self.folded_purpose), *args[1:])
        elif self.folded_sizes:
            kwargs[first] = check_size(kwargs.get(first), self.folded_sizes, self.folded_purpose)
        return mixin.forward(self, *args, **kwargs)

    return forward


def _revive(mixin: type[Folded], plain: type[nn.Module]) -> nn.Module:
    cls = _subclass(mixin, plain)  # type: ignore[arg-type]
    return cls.__new__(cls)


def _size_of(key: Any) -> Pair:
    size: Pair = key if isinstance(key[0], int) else key[1]
    return size
