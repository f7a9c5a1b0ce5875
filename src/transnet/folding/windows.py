"""The exact rule of folding: the windows of a convolution or pooling layer after t is folded into it.

Let y = c(t(x)), with c a convolution or pooling layer. A layer c' with c'(x) = t⁻¹(y) sees the same windows in x's
coordinates. On an axis that t reverses, c' counts them from the other end. It therefore swaps the start and end
pads, and moves its first window by the slack r, the pixels that c leaves unused at its end:

    (p₀, p₁) ↦ (p₁ − r, p₀),   r = n + p₀ + p₁ − kₑ − (o − 1)·s,   kₑ = d·(k − 1) + 1

Here n is the input's size, o the output's, s the stride and d the dilation. A negative pad crops. The plain rule of
Prop. 1 is the case r = 0, p₀ = p₁. In ceil mode r can be negative. Then the pads grow, by values that the layer
ignores (−∞ for a maximum; an average does not count them).
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

from transnet import d4
from transnet.folding.trace import Call, Pair

Pads = tuple[int, int, int, int]  # left, right, top, bottom, in the order of torch.nn.functional.pad

# Whether t reverses (height, width) in x's coordinates: r1 turns x's right edge into the top, at which c starts.
REVERSED = {
    "r0": (False, False), "r1": (False, True), "r2": (True, True), "r3": (True, False),
    "m0": (False, True), "m1": (True, True), "m2": (True, False), "m3": (False, False),
}  # fmt: skip


@dataclass(frozen=True)
class Axis:
    """The positions of the windows of a convolution or pooling call on one axis."""

    size: int = field(compare=False)
    kernel: int
    stride: int
    dilation: int
    start: int
    end: int
    out: int = field(compare=False)

    @property
    def extent(self) -> int:
        """Return kₑ, the number of pixels that a dilated kernel spans."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def slack(self) -> int:
        """Return r, the number of pixels after the last window. It is negative if ceil mode exceeds the padding."""
        return self.size + self.start + self.end - self.extent - (self.out - 1) * self.stride

    @property
    def exact(self) -> Pair:
        """Return the pads that leave no slack."""
        return self.start, self.end - self.slack

    def reversed(self) -> "Axis":
        """Return the same windows, counted from the other end."""
        return replace(self, start=self.end - self.slack, end=self.start)

    def windows(self, padding: int, crop: int = 0, ceil: bool = False) -> int:
        """Return how many windows torch places with this padding at both ends, after cropping the start."""
        room = self.size - crop + 2 * padding - self.extent
        count = (room + (self.stride - 1 if ceil else 0)) // self.stride + 1
        return count - (ceil and (count - 1) * self.stride >= self.size - crop + padding)


@dataclass(frozen=True)
class MovedCall:
    """A call that computes the same under t⁻¹: pad the input, then call with ``options``, which hold no tensors."""

    frame: Pads  # the positions at which the windows start and end, in whichever way this is carried out
    options: dict[str, Any]
    pads: Pads = (0, 0, 0, 0)  # before the call, with `mode` and `value`; negative pads crop
    mode: str = "constant"
    value: float = 0.0
    kept: Pair | None = None  # use only the first so many rows and columns of the output
    # For averages: divide the sum under each window by its number of real pixels. This border counts as real.
    counted: Pads | None = None


def move_call(call: Call, out: Pair, t: str, outer: Call | None = None) -> MovedCall | None:
    """Return the call that replaces ``call``, made on t(x) with an output of size ``out``, or None if it may stay.

    ``outer`` is the padding that a convolution of mode ``reflect`` or ``same`` puts around its input first.
    """
    if call.kind in ("conv2d", "max_pool2d", "avg_pool2d"):
        plain = _axes(call, out, outer)
        moved = [axis.reversed() if turned else axis for axis, turned in zip(_swapped(plain, t), REVERSED[t])]
        if moved == plain:
            return None
        frame = _flat([(axis.start, axis.end) for axis in moved])
        if call.kind == "conv2d":
            return _move_conv(call, moved, frame, outer)
        return _move_max(call, moved, frame) if call.kind == "max_pool2d" else _move_average(call, plain, moved, t)
    options = dict(call.options)
    if call.kind == "pad":
        pads = tuple(options["pad"])
        left, right, top, bottom, *rest = (*pads, 0, 0)[: max(4, len(pads))]
        frame = _flat(_move_pads([(top, bottom), (left, right)], t))
        options["pad"] = (*frame, *rest)
        return None if frame == (left, right, top, bottom) else MovedCall(frame, options)
    for name in ("output_size", "size", "scale_factor"):
        if isinstance(options.get(name), tuple) and d4.swaps_sides(t):
            options[name] = options[name][::-1]
    return None if options == call.options else MovedCall((0, 0, 0, 0), options)


def _move_conv(call: Call, moved: list[Axis], frame: Pads, outer: Call | None) -> MovedCall:
    if outer is not None and outer.options["mode"] != "constant":
        return MovedCall(frame, _options(call, moved, [0, 0]), frame, outer.options["mode"])
    # Torch's own padding needs no copy, but it is the same at both ends.
    own = [axis.start >= 0 and axis.windows(axis.start) == axis.out for axis in moved]
    padding = [axis.start if fits else 0 for axis, fits in zip(moved, own)]
    pads = _flat([(0, 0) if fits else (axis.start, axis.end) for axis, fits in zip(moved, own)])
    return MovedCall(frame, _options(call, moved, padding), pads)


def _move_max(call: Call, moved: list[Axis], frame: Pads) -> MovedCall:
    crop = [max(-axis.start, 0) for axis in moved]
    padding = [max(axis.start, 0) for axis in moved]
    if all(pad <= axis.kernel // 2 for axis, pad in zip(moved, padding)):  # torch refuses more
        for ceil in (False, True):  # ceil mode reaches beyond the end without a copy
            extra = [axis.windows(p, c, ceil) - axis.out for axis, p, c in zip(moved, padding, crop)]
            if min(extra) >= 0:
                kept = (moved[0].out, moved[1].out) if any(extra) else None
                options = _options(call, moved, padding, ceil_mode=ceil)
                return MovedCall(frame, options, _flat([(-c, 0) for c in crop]), kept=kept)
    options = _options(call, moved, [0, 0], ceil_mode=False)
    return MovedCall(frame, options, _flat([axis.exact for axis in moved]), value=-math.inf)


def _move_average(call: Call, plain: list[Axis], moved: list[Axis], t: str) -> MovedCall:
    frame, pads = _flat([(axis.start, axis.end) for axis in moved]), _flat([axis.exact for axis in moved])
    counts_padding = call.options["count_include_pad"]
    one_divisor = counts_padding or not any(axis.start for axis in plain)
    if call.options["divisor_override"] is not None or (one_divisor and all(axis.slack >= 0 for axis in plain)):
        # All windows have the same divisor, so that zeros may be added anywhere.
        padding = [0, 0]
        if all(0 <= axis.start <= axis.kernel // 2 and axis.windows(axis.start) == axis.out for axis in moved):
            padding, pads = [axis.start for axis in moved], (0, 0, 0, 0)
        return MovedCall(frame, _options(call, moved, padding, ceil_mode=False, count_include_pad=True), pads)
    options = _options(call, moved, [0, 0], ceil_mode=False, divisor_override=1)
    border = [(axis.start, axis.end) if counts_padding else (0, 0) for axis in plain]
    return MovedCall(frame, options, pads, counted=_flat(_move_pads(border, t)))


def _axes(call: Call, out: Pair, outer: Call | None) -> list[Axis]:
    given, weight = call.options, call.tensors.get("weight")
    kernel = _pair(given["kernel_size"]) if weight is None else tuple(weight.shape[-2:])
    stride = _pair(given["stride"] or kernel)
    dilation = _pair(given.get("dilation", 1))
    if given["padding"] == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel)]
        pads = [(p // 2, p - p // 2) for p in total]
    else:
        pads = [(p, p) for p in _pair(0 if given["padding"] == "valid" else given["padding"])]
    sizes = list(call.size)
    if outer is not None:
        left, right, top, bottom = outer.options["pad"]
        sizes = [size - sum(ends) for size, ends in zip(sizes, [(top, bottom), (left, right)])]
        pads = [(p0 + start, p1 + end) for (p0, p1), (start, end) in zip(pads, [(top, bottom), (left, right)])]
    return [Axis(*axis) for axis in zip(sizes, kernel, stride, dilation, *zip(*pads), out)]


def _swapped(axes: list[Any], t: str) -> list[Any]:
    return axes[::-1] if d4.swaps_sides(t) else axes


def _move_pads(pads: list[Pair], t: str) -> list[Pair]:
    return [(end, start) if turned else (start, end) for (start, end), turned in zip(_swapped(pads, t), REVERSED[t])]


def _flat(pads: list[Pair]) -> Pads:
    (top, bottom), (left, right) = pads
    return left, right, top, bottom


def _options(call: Call, axes: list[Axis], padding: list[int], **changes: Any) -> dict[str, Any]:
    options = {**call.options, "padding": tuple(padding), "stride": tuple(axis.stride for axis in axes), **changes}
    for name, values in (("kernel_size", [a.kernel for a in axes]), ("dilation", [a.dilation for a in axes])):
        if name in options:
            options[name] = tuple(values)
    return options


def _pair(value: Any) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])
