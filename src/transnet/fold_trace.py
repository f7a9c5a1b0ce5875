"""Watching a network run: which layer calls what on which size, and which layer is at fault when a fold is wrong."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from transnet import d4
from transnet.fold_windows import Call, Pair, read_call

# Functions that do not commute with rotations and reflections, or not in general.
_REASONS = {
    "scaled_dot_product_attention": "attention reads the positions in an order of its own",
    "roll": "it shifts the map",
    "grid_sample": "it samples at coordinates of its own",
    "unfold": "it cuts the map into patches in reading order",
    "pixel_shuffle": "it spreads channels over positions in reading order",
    "pixel_unshuffle": "it gathers positions into channels in reading order",
    "conv_transpose2d": "transposed convolutions have no folding rule here",
    "interpolate": "it does not resample alike from both ends: nearest interpolation must be by a whole factor",
    "__getitem__": "it slices the map from one end",
}


@dataclass
class Visit:
    """One call of a module: its input's size, and the calls with a geometry that its own code made."""

    name: str
    size: Pair | None
    calls: list[tuple[Call, Pair]] = field(default_factory=list)


@dataclass
class Trace:
    """What a network did on one input, module by module in the order in which they began."""

    visits: list[Visit] = field(default_factory=list)
    functions: dict[str, set[str]] = field(default_factory=dict)

    @property
    def sizes(self) -> set[Pair]:
        """Every map size that was seen."""
        return {call.size for visit in self.visits for call, _ in visit.calls} | {
            out for visit in self.visits for _, out in visit.calls
        }


def trace(model: nn.Module, x: Tensor) -> tuple[Trace, Any]:
    """Run ``model`` on ``x`` and record every call of a convolution, pooling, padding or interpolation.

    Functions are attributed to the innermost module whose forward is running, so that those called in a model's own
    code (``F.max_pool2d``) are found as well as layers.
    """
    seen = Trace()
    stack: list[Visit] = []

    def enter(name: str, args: tuple[Any, ...]) -> None:
        stack.append(Visit(name, _map_size(args)))
        seen.visits.append(stack[-1])

    class Recorder(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if stack:
                seen.functions.setdefault(stack[-1].name, set()).add(getattr(func, "__name__", ""))
                found = read_call(func, args, kwargs or {})
                if found is not None and isinstance(result, Tensor):
                    stack[-1].calls.append((found[1], (result.shape[-2], result.shape[-1])))
            return result

    with watched(model, enter, lambda name, args, output: stack.pop() and None), Recorder():
        output = model(x)
    return seen, output


def find_culprit(plain: nn.Module, folded: nn.Module, x: Tensor, t: str, seen: Trace) -> str:
    """Say which layer is the first whose output is not t⁻¹ of what it is in the plain network, and why."""
    ours, theirs = _outputs(folded, x), _outputs(plain, d4.apply(t, x))
    for (name, got_in, got), (other, want_in, want) in zip(ours, theirs):
        if name != other:
            break
        if _agree(got, want, t, seen.sizes):
            continue
        if _agree(got_in, want_in, t, seen.sizes):
            return f"{describe(plain, name)}: {_reason(plain, name, seen)}"
        if isinstance(plain.get_submodule(name), nn.Linear):
            return (
                f"{describe(plain, name)}: it reads a flattened map, so that every position has weights of its own; "
                "pool globally before it"
            )
        parent = _caller(name, seen)
        return f"{describe(plain, parent)}, in its own code before {name!r}: {_reason(plain, parent, seen)}"
    # The folded network stopped where sizes no longer meet, or the rest is the network's own code.
    name = theirs[len(ours)][0] if len(ours) < len(theirs) else ""
    return f"{describe(plain, name)}: {_reason(plain, name, seen)}"


def describe(model: nn.Module, name: str) -> str:
    """A layer's path and class, for messages."""
    kind = type(model.get_submodule(name)).__name__
    return f"layer {name!r} ({kind})" if name else f"the network itself ({kind})"


@contextmanager
def watched(
    model: nn.Module,
    enter: Callable[[str, tuple[Any, ...]], None],
    leave: Callable[[str, tuple[Any, ...], Any], None],
) -> Iterator[None]:
    """Call ``enter`` and ``leave`` around every module's forward."""
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            before = module.register_forward_pre_hook(lambda _, args, name=name: enter(name, args))
            after = module.register_forward_hook(lambda _, args, output, name=name: leave(name, args, output))
            hooks.callback(before.remove)
            hooks.callback(after.remove)
        yield


def _outputs(model: nn.Module, x: Tensor) -> list[tuple[str, Any, Any]]:
    found: list[tuple[str, Any, Any]] = []
    with suppress(RuntimeError), torch.no_grad():
        with watched(model, lambda *_: None, lambda *visit: found.append(visit)):
            model(x)
    return found


def _agree(got: Any, want: Any, t: str, sizes: set[Pair]) -> bool:
    """Whether two values of the folded and plain network correspond: as maps (either layout), tokens or invariants."""
    if isinstance(got, (tuple, list)):
        return all(_agree(g, w, t, sizes) for g, w in zip(got, want))
    if not isinstance(got, Tensor) or not got.is_floating_point():
        return True
    undo = d4.inverse(t)
    candidates = [want]
    if want.ndim == 4:
        candidates += [d4.apply(undo, want), d4.apply(undo, want.movedim(-1, 1)).movedim(1, -1)]
    if want.ndim == 3:
        for height, width in sizes:
            for axis in (1, 2):
                if want.shape[axis] == height * width:
                    maps = want.movedim(axis, -1).unflatten(-1, (height, width))
                    candidates.append(d4.apply(undo, maps).flatten(-2).movedim(-1, axis))
    return any(same(got, candidate) for candidate in candidates)


def same(got: Tensor, want: Tensor, tolerance: float = 1e-9) -> bool:
    """Whether two float64 results are equal up to rounding."""
    if got.shape != want.shape:
        return False
    scale = want.abs().max().item() if want.numel() else 0.0
    return bool((got - want).abs().max().item() <= tolerance * scale) if want.numel() else True


def _reason(model: nn.Module, name: str, seen: Trace) -> str:
    module = model.get_submodule(name)
    for own, _ in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
        if "pos" in own:
            return f"it adds a positional embedding ({own}), which is tied to positions"
    called = seen.functions.get(name, set())
    for function, reason in _REASONS.items():
        if function in called:
            return reason
    if isinstance(module, nn.Linear):
        return "it mixes positions by a learned matrix"
    return "it treats positions or directions differently, by a rule that is not known here"


def _caller(name: str, seen: Trace) -> str:
    """The innermost module around ``name`` whose own code computes something, unlike a Sequential's."""
    name = name.rpartition(".")[0]
    while name and not seen.functions.get(name):
        name = name.rpartition(".")[0]
    return name


def _map_size(args: tuple[Any, ...]) -> Pair | None:
    x = args[0] if args else None
    return (x.shape[-2], x.shape[-1]) if isinstance(x, Tensor) and x.ndim == 4 else None
