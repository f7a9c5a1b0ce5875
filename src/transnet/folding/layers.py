"""Layers of a folded network: the plain ones, with their windows moved.

A folded layer is the plain layer with its class replaced by a subclass made for it, so that parameters, hooks
and every reference to the module stay as they are, and ``isinstance`` still holds. It has a buffer
``folded_pads``, one row (height, width, left, right, top, bottom) for every moved call: a state dict with
such keys fails a strict load into the plain network, and one folded otherwise fails a load into this one.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from transnet.folding.calls import Pair, read_call
from transnet.folding.windows import Pads, Rewrite


def run(func: Any, x: Tensor, change: Rewrite, **tensors: Tensor | None) -> Tensor:
    """Carry out a rewritten call."""
    seen = _reframe(x, change.pads, change.mode, change.value)
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


def _reframe(x: Tensor, pads: Pads, mode: str, value: float) -> Tensor:
    if not any(pads):
        return x
    if mode == "constant" and max(pads) > 0:
        return F.pad(x, pads, value=value)
    if max(pads) > 0:
        x = F.pad(x, [max(pad, 0) for pad in pads], mode=mode)
    # A crop alone is a view, where torch's pad would copy.
    left, right, top, bottom = (min(pad, 0) for pad in pads)
    return x[..., -top : x.shape[-2] + bottom, -left : x.shape[-1] + right]


Changes = list[tuple[Any, Rewrite | None]]  # by the input's size for layers, by the call for functions


class Folded(nn.Module):
    """What all folded layers share; never made directly, see ``replace_class``."""

    plain_class: type[nn.Module]
    mixin: "type[Folded]"
    folded_pads: Tensor

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # The subclass is made at run time, so copies and pickles name the classes it is made of.
        return _revive, (self.mixin, self.plain_class), self.__getstate__()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        given = state_dict.get(f"{prefix}folded_pads")
        if given is not None and not torch.equal(given.to(self.folded_pads), self.folded_pads):
            args[-1].append(
                f"{prefix}folded_pads: the weights were folded with {given.tolist()}, this network with "
                f"{self.folded_pads.tolist()}; load them into a fold of the same transform and image size"
            )
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """The plain layer's own, and where the windows lie now."""
        frames = [f"{h}×{w} with pads {tuple(pads)}" for h, w, *pads in self.folded_pads.tolist()]
        return ", ".join(filter(None, [super().extra_repr(), f"folded: {'; '.join(frames)}"]))


class FoldedLayer(Folded):
    """A convolution or pooling layer with moved windows, one ``Rewrite`` for each input size it meets."""

    rewrites: dict[Pair, Rewrite | None]

    def forward(self, x: Tensor) -> Tensor:
        """t⁻¹ of what the plain layer gives on t(x)."""
        size = x.shape[-2], x.shape[-1]
        if size not in self.rewrites:
            known = ", ".join(f"{h}×{w}" for h, w in self.rewrites)
            raise ValueError(f"a folded layer got a {size[0]}×{size[1]} map; it was folded for {known}")
        change = self.rewrites[size]
        if change is None:
            return super().forward(x)  # type: ignore[no-any-return, misc]
        if isinstance(self, nn.Conv2d):
            return run(F.conv2d, x, change, weight=self.weight, bias=self.bias)
        return run(F.max_pool2d if isinstance(self, nn.MaxPool2d) else F.avg_pool2d, x, change)


class FoldedCalls(Folded):
    """A module whose own code calls convolutions, pooling or padding as functions: those calls are moved."""

    rewrites: dict[tuple[Any, ...], Rewrite | None]
    expected: list[set[tuple[Any, ...]]]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The plain module's code, with its calls replaced while it runs."""
        met: set[tuple[Any, ...]] = set()
        with _ReplaceCalls(self.rewrites, met):
            output = super().forward(*args, **kwargs)  # type: ignore[misc]
        if met not in self.expected:
            raise RuntimeError(f"{type(self).__name__} did not make the calls it was folded for; run it uncompiled")
        return output


class FoldedUncompiledCalls(FoldedCalls):
    """The same where padding is among the calls: torch.compile would not let a mode see that, so it is left out."""


def replace_class(module: nn.Module, mixin: type[Folded], visits: list[Changes], device: torch.device) -> None:
    """Turn a plain module into a folded one, in place; ``visits`` has the changes for each time that it is called."""
    rewrites = {key: change for changes in visits for key, change in changes}
    moved = {key: change for key, change in rewrites.items() if change is not None}
    rows = [[*_size_of(key), *change.frame] for key, change in moved.items()]
    module.register_buffer("folded_pads", torch.tensor(rows, device=device))
    module.rewrites = rewrites  # type: ignore[assignment]
    module.expected = [{key for key, _ in changes if key in moved} for changes in visits]  # type: ignore[assignment]
    module.__class__ = _subclass(mixin, type(module))  # type: ignore[arg-type]


def restore_class(module: Folded) -> None:
    """Turn a folded module back into the plain one, in place."""
    del module.folded_pads, module.rewrites, module.expected  # type: ignore[attr-defined]
    module.__class__ = module.plain_class  # type: ignore[assignment]


class _ReplaceCalls(TorchFunctionMode):
    def __init__(self, rewrites: dict[tuple[Any, ...], Rewrite | None], met: set[tuple[Any, ...]]) -> None:
        super().__init__()
        self.rewrites = rewrites
        self.met = met

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = read_call(func, args, kwargs or {})
        if found is not None:
            x, call = found
            change = self.rewrites.get(call.key)
            if change is not None:
                self.met.add(call.key)
                return run(func, x, change, **call.tensors)
        return func(*args, **(kwargs or {}))


@cache
def _subclass(mixin: type[Folded], plain: type[nn.Module]) -> type[nn.Module]:
    names = {"plain_class": plain, "mixin": mixin, "__module__": __name__, "__doc__": plain.__doc__}
    if mixin is FoldedUncompiledCalls:
        names["forward"] = torch.compiler.disable(mixin.forward)
    return type(f"Folded{plain.__name__}", (mixin, plain), names)


def _revive(mixin: type[Folded], plain: type[nn.Module]) -> nn.Module:
    cls = _subclass(mixin, plain)  # type: ignore[arg-type]
    return cls.__new__(cls)


def _size_of(key: Any) -> Pair:
    size: Pair = key if isinstance(key[0], int) else key[1]
    return size
