"""Read calls of functions with a geometry from a running network: convolution, pooling, padding, upsampling."""

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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
_TENSORS = ("weight", "bias")


@dataclass(frozen=True)
class Call:
    """One call of a function with a geometry. ``options`` holds all arguments except the tensors."""

    kind: str
    size: Pair
    options: dict[str, Any]
    tensors: dict[str, Tensor | None]

    @property
    def key(self) -> tuple[Any, ...]:
        """Identify the call while the network runs."""
        weight = self.tensors.get("weight")
        shape = () if weight is None else numbers(tuple(weight.shape))
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
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    if options.get("stride") == ():  # torch's own code passes this for None
        options["stride"] = None
    tensors: dict[str, Tensor | None] = {name: options.pop(name) for name in (*options,) if name in _TENSORS}
    options = {name: numbers(value) for name, value in options.items()}
    return x, Call(kind, map_size(x), options, tensors)


def map_size(x: Tensor) -> Pair:
    """Return the height and width of a map."""
    height, width = numbers(tuple(x.shape[-2:]))
    return height, width


def numbers(value: Any) -> Any:
    """Return a size or an option as plain numbers, of which ``torch.jit.trace`` and ``torch.export`` make symbols."""
    if isinstance(value, tuple):
        return tuple(numbers(part) for part in value)
    if isinstance(value, torch.SymInt):
        return int(value)
    if not isinstance(value, Tensor) or not torch.jit.is_tracing():  # type: ignore[attr-defined]
        return value
    with warnings.catch_warnings():
        # The warning is that the trace is valid for this size only, which ``check_size`` enforces.
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # type: ignore[attr-defined]
        return value.item()
