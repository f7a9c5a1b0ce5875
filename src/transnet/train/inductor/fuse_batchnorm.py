"""A compiled step's batch norm as one product and one sum a value, for a GPU.

A step in mixed precision is bound by memory: after the convolutions, most of its time goes to reading and writing the
activations around batch norm. The compiler leaves two things on the table there.

Each value is normalised with four numbers of its channel, two bytes of activation against sixteen of numbers. Here two
are enough, made once a channel:

    pre = (x − mean) · rstd · weight + bias   ─▶   pre = x · scale + shift

And ReLU's gradient asks where its result y was positive. The compiler reads all of y for that, twice: for the sums that
batch norm's gradient needs, and for the gradient itself. But the convolution's output x is read there anyway, and y is
positive where x · scale + shift is. Only where y goes into one convolution and nowhere else: where gradients meet, as
at a residual connection, they are added and masked in one go, and the sum is written down.

Another order of the operations in float32 is far below what bfloat16 rounds off, and rounding keeps the sign; in full
precision nothing is changed.
"""

from typing import Any

import torch
from torch import Tensor, fx

from transnet.train.inductor.graph_edit import spliced

_aten, _prims = torch.ops.aten, torch.ops.prims


def by_scale_and_shift(rounded: fx.Node) -> bool:
    """Rewrite the batch norm of a joint graph whose result is rounded at a node; whether there is one."""
    pre: Any = rounded.args[0]
    wide = pre.meta["val"].dtype
    if rounded.meta["val"].dtype.itemsize >= wide.itemsize or (parts := _normalised(pre)) is None:
        return False

    def affine(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scale, shift = _written(rstd * weight), _written(bias - mean * rstd * weight)
        return scale, shift, x.to(wide) * scale + shift

    scale, shift, new = spliced(pre, affine, *parts)
    masks = _masks(rounded)
    pre.replace_all_uses_with(new)
    for mask in masks:
        # The factors stand the other way round: else the compiler would find the forward pass's product in it, and
        # keep that, or the mask, instead of x.
        made = spliced(mask, lambda x, scale, shift: (scale * x.to(wide) + shift <= 0,), parts[0], scale, shift)
        mask.replace_all_uses_with(made[0])
    return True


def _written(x: Tensor) -> Tensor:
    """``x``, which the compiler shall write down: it would rather make it again for every value that needs it."""
    return _prims.inductor_force_stride_order(x, x.stride())


def _masks(rounded: fx.Node) -> list[fx.Node]:
    """The masks of a ReLU that alone uses ``rounded``, and whose own result only one convolution uses."""
    users = list(rounded.users)
    if len(users) != 1 or not _is(relu := users[0], _aten.relu.default):
        return []
    masks = [user for user in relu.users if _is(user, _aten.le.Scalar) and user.args[1] == 0]
    uses = [user for user in relu.users if user not in masks and not _is(user, _aten.convolution_backward.default)]
    return masks if len(uses) == 1 and _is(uses[0], _aten.convolution.default) else []


def _normalised(pre: Any) -> tuple[fx.Node, ...] | None:
    """The parts of (x − mean) · rstd · weight + bias, in this order."""
    if not _is(pre, _aten.add.Tensor) or not _is(pre.args[0], _aten.mul.Tensor):
        return None
    scaled, bias = pre.args[:2]
    unit, weight = scaled.args[:2]
    if not _is(unit, _aten.mul.Tensor) or not _is(unit.args[0], _aten.sub.Tensor):
        return None
    centred, rstd = unit.args[:2]
    x, mean = centred.args[:2]
    parts = x, mean, rstd, weight, bias
    if not all(isinstance(part, fx.Node) for part in parts) or not _is(rstd, _aten.rsqrt.default):
        return None
    shapes = [part.meta["val"].shape for part in parts[1:]]
    per_channel = torch.broadcast_shapes(*shapes).numel() == weight.meta["val"].numel()  # not so in a layer norm
    return parts if per_channel else None


def _is(node: Any, target: Any) -> bool:
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target == target
