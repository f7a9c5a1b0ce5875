"""The exact rule of folding: the windows of a convolution or pooling layer after t is folded into it.

Let y = c(t(x)), with c a convolution or pooling layer. A layer c' with c'(x) = t⁻¹(y) sees the same windows in x's
coordinates. On an axis that t reverses, c' counts them from the other end. It therefore swaps the start and end
pads, and moves its first window by the slack r, the pixels that c leaves unused at its end:

    (p₀, p₁) ↦ (p₁ − r, p₀),   r = n + p₀ + p₁ − kₑ − (o − 1)·s,   kₑ = d·(k − 1) + 1

Here n is the input's size, o the output's, s the stride and d the dilation. A negative pad crops. The plain rule of
Prop. 1 is the case r = 0, p₀ = p₁. In ceil mode r can be negative. Then the pads grow, by values that the layer
ignores (−∞ for a maximum; an average does not count them).
"""

from dataclasses import dataclass, replace
from typing import Any

from transnet import d4
from transnet.folding.calls import Call, Pair

Pads = tuple[int, int, int, int]  # left, right, top, bottom, in the order of torch.nn.functional.pad

# Whether t reverses (height, width) in x's coordinates: r1 turns x's right edge into the top, at which c starts.
REVERSED = {
    "r0": (False, False), "r1": (False, True), "r2": (True, True), "r3": (True, False),
    "m0": (False, True), "m1": (True, True), "m2": (True, False), "m3": (False, False),
}  # fmt: skip


@dataclass(frozen=True)
class Axis:
    """The positions of the windows of a convolution or pooling call on one axis."""

    size: int
    kernel: int
    stride: int
    dilation: int
    start: int
    end: int
    out: int

    @property
    def extent(self) -> int:
        """Return kₑ, the number of pixels that a dilated kernel spans."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def slack(self) -> int:
        """Return r, the number of pixels after the last window. It is negative if ceil mode exceeds the padding."""
        return self.size + self.start + self.end - self.extent - (self.out - 1) * self.stride

    @property
    def fitted(self) -> int:
        """Return the end pad that leaves no slack."""
        return self.end - self.slack

    def reversed(self) -> "Axis":
        """Return the same windows, counted from the other end."""
        return replace(self, start=self.fitted, end=self.start)

    def windows(self, padding: int, crop: int = 0, ceil: bool = False) -> int:
        """Return how many windows torch places with this padding at both ends, after cropping the start."""
        room = self.size - crop + 2 * padding - self.extent
        count = (room + (self.stride - 1 if ceil else 0)) // self.stride + 1
        return count - (ceil and (count - 1) * self.stride >= self.size - crop + padding)


@dataclass(frozen=True)
class MovedCall:
    """A call that computes the same under t⁻¹: frame the input by ``pads``, then call with ``options``.

    Attributes:
        frame: the positions at which the windows start and end, in whichever way this is carried out.
        options: the arguments of the call, except the tensors.
        pads: padding (or cropping, if negative) before the call, with ``mode`` and ``value``.
        step: use every so many rows and columns of the input only.
        kept: (first row, rows) and (first column, columns) of the output that are kept.
        counted: for averages that no option of torch describes, the sum under each window is divided by its number
            of real pixels, and a border of this width counts as real.
    """

    frame: Pads
    options: dict[str, Any]
    pads: Pads = (0, 0, 0, 0)
    mode: str = "constant"
    value: float = 0.0
    step: Pair = (1, 1)
    kept: tuple[Pair, Pair] | None = None
    counted: Pads | None = None


def move_call(call: Call, out: Pair, t: str, outer: Call | None = None) -> MovedCall | None:
    """Return the call that replaces ``call`` in the folded network, in x's coordinates, or None if it may stay.

    Args:
        call: the plain network's call on t(x), with the size of its input.
        out: the height and width of its output.
        t: the element to fold.
        outer: the padding that a convolution of mode ``reflect`` or ``same`` puts around its input first.
    """
    if call.kind == "conv2d":
        return _move_conv(call, out, t, outer)
    if call.kind in ("max_pool2d", "avg_pool2d"):
        plain = _axes(call, out)
        moved = _move(plain, t)
        if _layout(moved) == _layout(plain):
            return None
        return _move_max(call, moved) if call.kind == "max_pool2d" else _move_average(call, plain, t)
    options = dict(call.options)
    if call.kind == "pad":
        pads = tuple(options["pad"])
        given = (*pads, 0, 0)[: max(4, len(pads))]
        frame = _flat(_move_pads([given[2:4], given[:2]], t))
        options["pad"] = (*frame, *given[4:])
        return None if options["pad"] == given else MovedCall(frame, options)
    for name in ("output_size", "size", "scale_factor"):
        if isinstance(options.get(name), tuple) and d4.swaps_sides(t):
            options[name] = options[name][::-1]
    return None if options == call.options else MovedCall((0, 0, 0, 0), options)


def _move_conv(call: Call, out: Pair, t: str, outer: Call | None) -> MovedCall | None:
    plain = _axes(call, out)
    mode = "constant"
    if outer is not None:
        left, right, top, bottom = outer.options["pad"]
        mode = outer.options["mode"]
        plain = [
            replace(a, size=a.size - p0 - p1, start=a.start + p0, end=a.end + p1)
            for a, (p0, p1) in zip(plain, [(top, bottom), (left, right)])
        ]
    moved = _move(plain, t)
    if _layout(moved) == _layout(plain):
        return None
    if mode == "constant":
        plans = [_subsampled(call, moved), _earlier(call, moved), _padded(call, moved)]
        cheapest = min((plan for plan in plans if plan is not None), key=lambda plan: plan[0])
        return cheapest[1]
    return MovedCall(_frame(moved), _options(call, moved, [0, 0]), _frame(moved), mode)


# The ways to move a convolution's windows, each with its cost in numbers read and written per image. Torch's own
# padding costs nothing, but it consists of zeros, the same number at both ends. It may exceed the last window.
_Plan = tuple[float, MovedCall]
_FLOPS = 200  # a GPU computes about this many in the time that it takes to read or write one number


def _subsampled(call: Call, moved: list[Axis]) -> _Plan | None:
    """Give the convolution only every s-th pixel, because a kernel of one pixel sees no others."""
    if any(axis.extent > 1 or axis.start > 0 or axis.fitted > 0 for axis in moved):
        return None
    pads = _flat([(min(axis.start, 0), 0) for axis in moved])
    options = {**_options(call, moved, [0, 0]), "stride": (1, 1)}
    kept = (0, moved[0].out), (0, moved[1].out)
    replacement = MovedCall(_frame(moved), options, pads, step=(moved[0].stride, moved[1].stride), kept=kept)
    return 2.0 * _channels(call)[0] * moved[0].out * moved[1].out, replacement


def _earlier(call: Call, moved: list[Axis]) -> _Plan | None:
    """Start some strides earlier, so that the padding is the same at both ends, and drop the extra windows."""
    padding, first, extra = [], [], 1.0
    for axis in moved:
        more = max(-axis.start, 0)
        skipped = 0 if _inside(axis) else max(1, -(-more // axis.stride))
        padding.append(axis.start + skipped * axis.stride)
        first.append(skipped)
        count = axis.windows(padding[-1])
        if count < skipped + axis.out:
            return None
        extra *= count
    (height, width), (into, outof) = (moved[0].out, moved[1].out), _channels(call)
    kept = ((first[0], height), (first[1], width)) if any(first) else None
    more_flops = (
        2 * (extra - height * width) * outof * into * moved[0].kernel * moved[1].kernel / call.options["groups"]
    )
    cost = more_flops / _FLOPS + (2.0 * outof * height * width if kept else 0)
    return cost, MovedCall(_frame(moved), _options(call, moved, padding), kept=kept)


def _padded(call: Call, moved: list[Axis]) -> _Plan:
    """Copy the input, or a part of it, into a padded one."""
    inside = [_inside(axis) for axis in moved]
    padding = [axis.start if within else 0 for axis, within in zip(moved, inside)]
    pads = _flat([(0, 0) if within else (axis.start, axis.end) for axis, within in zip(moved, inside)])
    copies = 0 if not any(pads) else 3 if max(pads) > 0 else 2
    cost = copies * _channels(call)[0] * moved[0].size * moved[1].size
    return float(cost), MovedCall(_frame(moved), _options(call, moved, padding), pads)


def _inside(axis: Axis) -> bool:
    return axis.start >= 0 and axis.windows(axis.start) == axis.out


def _channels(call: Call) -> Pair:
    weight = call.tensors["weight"]
    assert weight is not None
    return weight.shape[1] * call.options["groups"], weight.shape[0]


def _move_max(call: Call, moved: list[Axis]) -> MovedCall:
    fit = _fit_pool(moved, call.options["ceil_mode"])
    if fit is not None:
        padding, crop, ceil, kept = fit
        return MovedCall(_frame(moved), _options(call, moved, padding, ceil_mode=ceil), _flat(crop), kept=kept)
    options = _options(call, moved, [0, 0], ceil_mode=False)
    return MovedCall(_frame(moved), options, _flat([(a.start, a.fitted) for a in moved]), value=float("-inf"))


def _move_average(call: Call, plain: list[Axis], t: str) -> MovedCall:
    given = call.options
    border = [(0, 0), (0, 0)]
    clipped = any(axis.slack < 0 for axis in plain)
    if given["divisor_override"] is not None or (
        not clipped and (given["count_include_pad"] or not any(axis.start for axis in plain))
    ):
        # All windows have one divisor, so that zeros may be added anywhere.
        moved = _move(plain, t)
        inside = all(0 <= a.start <= a.kernel // 2 and a.windows(a.start) == a.out for a in moved)
        padding = [axis.start for axis in moved] if inside else [0, 0]
        pads = [(0, 0), (0, 0)] if inside else [(a.start, a.fitted) for a in moved]
        options = _options(call, moved, padding, ceil_mode=False, count_include_pad=True)
        return MovedCall(_frame(moved), options, _flat(pads))
    if given["count_include_pad"]:
        # The padding counts, but the pixels that ceil mode adds beyond it do not. So the padding becomes input.
        border = _move_pads([(axis.start, axis.end) for axis in plain], t)
        plain = [replace(axis, size=axis.size + axis.start + axis.end, start=0, end=0) for axis in plain]
    moved = _move(plain, t)
    frame = _frame([replace(a, start=a.start + b[0], end=a.end + b[1]) for a, b in zip(moved, border)])
    fit = _fit_pool(moved, given["ceil_mode"])
    if fit is not None:
        padding, crop, ceil, kept = fit
        options = _options(call, moved, padding, ceil_mode=ceil, count_include_pad=False)
        pads = [(b[0] + c[0], b[1] + c[1]) for b, c in zip(border, crop)]
        return MovedCall(frame, options, _flat(pads), kept=kept)
    options = _options(call, moved, [0, 0], ceil_mode=False, divisor_override=1)
    pads = [(a.start + b[0], a.fitted + b[1]) for a, b in zip(moved, border)]
    return MovedCall(frame, options, _flat(pads), counted=_flat(border))


def _fit_pool(
    moved: list[Axis], ceil_mode: bool
) -> tuple[list[int], list[Pair], bool, tuple[Pair, Pair] | None] | None:
    """Return padding, crops, ceil mode and the kept output of a pooling that ignores its padding and copies nothing."""
    crop = [max(-axis.start, 0) for axis in moved]
    padding = [max(axis.start, 0) for axis in moved]
    if any(p > axis.kernel // 2 for p, axis in zip(padding, moved)):
        return None  # torch refuses more
    for ceil, exact in ((ceil_mode, True), (not ceil_mode, True), (True, False)):
        extra = [axis.windows(p, c, ceil) - axis.out for axis, p, c in zip(moved, padding, crop)]
        if not any(extra) if exact else min(extra) >= 0:
            kept = (0, moved[0].out), (0, moved[1].out)
            return padding, [(-c, 0) for c in crop], ceil, None if exact else kept
    return None


def _axes(call: Call, out: Pair) -> list[Axis]:
    given, weight = call.options, call.tensors.get("weight")
    kernel = _pair(given["kernel_size"]) if weight is None else tuple(weight.shape[-2:])
    stride = _pair(given["stride"] or kernel)
    dilation = _pair(given.get("dilation", 1))
    padding = given["padding"]
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel)]
        pads = [(p // 2, p - p // 2) for p in total]
    else:
        pads = [(p, p) for p in _pair(0 if padding == "valid" else padding)]
    return [Axis(*axis) for axis in zip(call.size, kernel, stride, dilation, *zip(*pads), out)]


def _move(plain: list[Axis], t: str) -> list[Axis]:
    axes = plain[::-1] if d4.swaps_sides(t) else plain
    return [axis.reversed() if turned else axis for axis, turned in zip(axes, REVERSED[t])]


def _move_pads(pads: list[Pair], t: str) -> list[Pair]:
    pads = pads[::-1] if d4.swaps_sides(t) else pads
    return [(end, start) if turned else (start, end) for (start, end), turned in zip(pads, REVERSED[t])]


def _layout(axes: list[Axis]) -> list[Axis]:
    return [replace(axis, size=0, out=0) for axis in axes]


def _frame(axes: list[Axis]) -> Pads:
    return _flat([(axis.start, axis.end) for axis in axes])


def _flat(pads: list[Pair]) -> Pads:
    (top, bottom), (left, right) = pads
    return left, right, top, bottom


def _options(call: Call, axes: list[Axis], padding: list[int], **changes: Any) -> dict[str, Any]:
    options = {**call.options, "padding": tuple(padding), "stride": tuple(a.stride for a in axes), **changes}
    if "kernel_size" in options:
        options["kernel_size"] = tuple(axis.kernel for axis in axes)
    if "dilation" in options:
        options["dilation"] = tuple(axis.dilation for axis in axes)
    return options


def _pair(value: Any) -> Pair:
    if isinstance(value, int):
        return value, value
    first, second = value if len(value) == 2 else (value[0], value[0])
    return first, second
