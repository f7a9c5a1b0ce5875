"""Calls of functions with a geometry, read from a network while it runs: convolution, pooling, padding, upsampling."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

Pair = tuple[int, int]

# Every function with a geometry, and its arguments after "input" with their defaults.
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
    """One call of a function with a geometry; ``options`` are all arguments but the tensors."""

    kind: str
    size: Pair
    options: dict[str, Any]
    tensors: dict[str, Tensor | None]

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells calls apart when the network runs: the function, the input's size and the options."""
        weight = self.tensors.get("weight")
        # Sorted, because folding may transpose the kernel.
        shape = () if weight is None else (*weight.shape[:2], *sorted(weight.shape[2:]))
        return self.kind, self.size, tuple(self.options.values()), shape


def read_call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Call] | None:
    """The input and the call; None for a function without a geometry and for input that is no map."""
    kind = getattr(func, "__name__", "")
    if kind not in _SIGNATURES:
        return None
    given = {**dict(zip(("input", *_SIGNATURES[kind]), args)), **kwargs}
    x = given.pop("input", None)
    if not isinstance(x, Tensor) or x.ndim != 4 or not given.keys() <= _SIGNATURES[kind].keys():
        return None
    options = {**_SIGNATURES[kind], **given}
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    if options.get("stride") == ():  # what torch's own code passes on for None
        options["stride"] = None
    tensors: dict[str, Tensor | None] = {name: options.pop(name) for name in (*options,) if name in _TENSORS}
    height, width = x.shape[-2:]
    return x, Call(kind, (height, width), options, tensors)
