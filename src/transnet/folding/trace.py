"""Watch a network run: record which layer calls what at which size, and find the layer that makes a fold wrong."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from transnet import d4

Pair = tuple[int, int]

# Every function with a geometry, with the arguments that follow "input" and their defaults.
_SIGNATURES: dict[str, dict[str, Any]] = {
    "conv2d": {"weight": None, "bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1},
    "max_pool2d": {"kernel_size": None, "stride": None, "padding": 0, "dilation": 1, "ceil_mode": False}
    | {"return_indices": False},
    "avg_pool2d": {"kernel_size": None, "stride": None, "padding": 0, "ceil_mode": False}
    | {"count_include_pad": True, "divisor_override": None},
    "adaptive_avg_pool2d": {"output_size": None},
    "adaptive_max_pool2d": {"output_size": None, "return_indices": False},
    "pad": {"pad": None, "mode": "constant", "value": None},
    "interpolate": {"size": None, "scale_factor": None, "mode": "nearest", "align_corners": None}
    | {"recompute_scale_factor": None, "antialias": False},
}


@dataclass(frozen=True)
class Call:
    """One call of a function with a geometry. ``options`` holds all arguments except the tensors."""

    kind: str
    size: Pair
    options: dict[str, Any]
    tensors: dict[str, Tensor | None]

    @property
    def key(self) -> tuple[Any, ...]:
        """What identifies the call while the network runs."""
        weight = self.tensors.get("weight")
        shape = () if weight is None else _numbers(weight.shape)
        # The sides of the kernel are sorted, because folding may transpose it.
        return self.kind, self.size, tuple(self.options.values()), (*shape[:2], *sorted(shape[2:]))


def read_call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Call] | None:
    """Return the input and the call, or None if the function has no geometry or the input is not a map."""
    kind = getattr(func, "__name__", "")
    if kind not in _SIGNATURES:
        return None
    given = {**dict(zip(("input", *_SIGNATURES[kind]), args)), **kwargs}
    x = given.pop("input", None)
    if not isinstance(x, Tensor) or x.ndim != 4 or not given.keys() <= _SIGNATURES[kind].keys():
        return None
    options = {**_SIGNATURES[kind], **given}
    tensors: dict[str, Tensor | None] = {name: options.pop(name) for name in ("weight", "bias") if name in options}
    options = {name: _numbers(value) for name, value in options.items()}
    if options.get("stride") == ():  # torch's own code passes this for None
        options["stride"] = None
    return x, Call(kind, map_size(x), options, tensors)


def map_size(x: Tensor) -> Pair:
    """Return the height and width of a map."""
    height, width = _numbers(x.shape[-2:])
    return height, width


def _numbers(value: Any) -> Any:
    """Return a size or an option as plain numbers, of which ``torch.jit.trace`` and ``torch.export`` make symbols."""
    if isinstance(value, (tuple, list)):
        return tuple(_numbers(part) for part in value)
    if isinstance(value, torch.SymInt):
        return int(value)
    if not isinstance(value, Tensor) or not torch.jit.is_tracing():  # type: ignore[attr-defined]
        return value
    with warnings.catch_warnings():
        # The warning is that the trace is valid for this size only, which ``check_size`` enforces.
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # type: ignore[attr-defined]
        return value.item()


# Why the code of a module that calls these may fail to commute with t. The message gives the first that applies.
_REASONS = {
    "its attention treats positions by their order": ("scaled_dot_product_attention", "softmax"),
    "it shifts the map": ("roll",),
    "it samples at coordinates of its own": ("grid_sample",),
    "it moves pixels between positions and channels in reading order": ("unfold", "pixel_shuffle", "pixel_unshuffle"),
    "transposed convolutions are not covered": ("conv_transpose2d",),
    "nearest interpolation is exact by whole factors only": ("interpolate",),
    "it rounds to float32, so that exactness cannot be checked": ("float",),
    "it cuts the map into windows or patches in reading order": ("permute",),
    "it slices the map from one end": ("__getitem__",),
}


@dataclass
class Visit:
    """One call of a module: its input's size, and the calls with a geometry that its own code made."""

    name: str
    size: Pair | None
    calls: list[tuple[Call, Pair]] = field(default_factory=list)  # with the size of the result


@dataclass
class Trace:
    """The calls of a network on one input, module by module, in the order in which they began."""

    visits: list[Visit] = field(default_factory=list)
    functions: dict[str, set[str]] = field(default_factory=dict)  # that a module's own code calls
    output: Any = None


@torch.no_grad()
def trace(model: nn.Module, x: Tensor, record: Callable[[str, bool, Any], None] = lambda *event: None) -> Trace:
    """Run ``model`` on ``x`` and record every call of a convolution, pooling, padding or interpolation.

    A function is attributed to the innermost module whose forward is running. ``record`` is called at each module's
    beginning and end, with its name, whether this is the end, and its arguments or its output.
    """
    seen = Trace()
    stack: list[Visit] = []

    class Recorder(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            name = getattr(func, "__name__", "")
            if stack and name != "__get__":  # x.shape and the like compute nothing
                seen.functions.setdefault(stack[-1].name, set()).add(name)
                found = read_call(func, args, kwargs or {})
                if found is not None and isinstance(result, Tensor):
                    stack[-1].calls.append((found[1], map_size(result)))
            return result

    def enter(name: str, args: tuple[Any, ...]) -> None:
        x = args[0] if args else None
        stack.append(Visit(name, map_size(x) if isinstance(x, Tensor) and x.ndim == 4 else None))
        seen.visits.append(stack[-1])
        record(name, False, args)

    def leave(name: str, output: Any) -> None:
        stack.pop()
        record(name, True, output)

    with ExitStack() as hooks, Recorder():
        for name, module in model.named_modules():
            hooks.enter_context(module.register_forward_pre_hook(lambda _, args, name=name: enter(name, args)))
            hooks.enter_context(module.register_forward_hook(lambda _, args, output, name=name: leave(name, output)))
        seen.output = model(x)
    return seen


def find_culprit(plain: nn.Module, folded: nn.Module, x: Tensor, t: str) -> str:
    """Describe the first layer at which the two networks differ, because its code does not commute with t, and why."""
    ours: list[tuple[str, bool, Any]] = []
    theirs: list[tuple[str, bool, Any]] = []
    seen = trace(plain, d4.apply(t, x), lambda *event: theirs.append(event))
    with suppress(RuntimeError):
        trace(folded, x, lambda *event: ours.append(event))
    calls = [call for visit in seen.visits for call in visit.calls]
    sizes = {call.size for call, _ in calls} | {out for _, out in calls}
    undo = d4.inverse(t)
    differing = (i for i, (got, want) in enumerate(zip(ours, theirs)) if not _agree(got[-1], want[-1], undo, sizes))
    # If none differs, the folded network stopped, because the sizes of two maps no longer match.
    first = next(differing, min(len(ours), len(theirs) - 1))
    name, leaves, _ = theirs[first]
    if leaves:
        return f"{describe(plain, name)}: {_reason(plain, name, seen)}"
    running = [""]
    for module, left, _ in theirs[:first]:
        running = running[:-1] if left else [*running, module]
    return f"{describe(plain, running[-1])}, in its own code before {name!r}: {_reason(plain, running[-1], seen)}"


def describe(model: nn.Module, name: str) -> str:
    """Return a layer's path and class, for messages."""
    kind = type(model.get_submodule(name)).__name__
    return f"layer {name!r} ({kind})" if name else f"the network itself ({kind})"


def same(got: Tensor, want: Tensor) -> bool:
    """Return whether two float64 results are equal up to rounding."""
    if got.shape != want.shape or not want.numel():
        return got.shape == want.shape
    return bool((got - want).abs().max() <= 1e-9 * want.abs().max())


def _agree(got: Any, want: Any, undo: str, sizes: set[Pair]) -> bool:
    """Return whether two values correspond: as maps in either layout, as tokens, or because they are equal."""
    if isinstance(got, (tuple, list)):
        return all(_agree(g, w, undo, sizes) for g, w in zip(got, want))
    if not isinstance(got, Tensor) or not got.is_floating_point():
        return True
    return any(same(got, candidate) for candidate in _turned_back(want, undo, sizes))


def _turned_back(want: Tensor, undo: str, sizes: set[Pair]) -> Iterator[Tensor]:
    yield want
    if want.ndim == 4:
        yield d4.apply(undo, want)
        yield d4.apply(undo, want.movedim(-1, 1)).movedim(1, -1)
    for axis, length in enumerate(want.shape):
        for height, width in sizes:
            area = height * width
            # Tokens: positions in reading order, after a class token or in a flattened batch.
            if area > 1 and length >= area and length % area <= 1:
                head, rest = want.movedim(axis, -1).split([length % area, length - length % area], -1)
                maps = d4.apply(undo, rest.unflatten(-1, (-1, height, width)))
                yield torch.cat([head, maps.flatten(-3)], -1).movedim(-1, axis)


def _reason(model: nn.Module, name: str, seen: Trace) -> str:
    module = model.get_submodule(name)
    for own in [*module._parameters, *module._buffers]:
        if "pos" in own:
            return f"it adds a positional embedding ({own})"
    if "PosEmb" in type(module).__name__:
        return "it is a positional embedding"
    for reason, functions in _REASONS.items():
        if seen.functions.get(name, set()).intersection(functions):
            return reason
    if isinstance(module, nn.Linear):
        return "it has weights of its own for every position; pool globally before it"
    return "it does not treat all positions and directions alike, and no rule for it is known"
