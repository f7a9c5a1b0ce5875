"""Batch norm in a compiled step as one product and one sum per value, for a GPU.

A step in mixed precision is limited by memory, mostly by the activations around batch norm. The compiler misses two
optimisations there. It normalises each value, two bytes, with four numbers of its channel, sixteen bytes. Two suffice:

    pre = (x − mean) · rstd · weight + bias   ─▶   pre = x · scale + shift

The gradient of ReLU needs the sign of its result y. The compiler reads all of y for that, twice. But it reads the
convolution's output x there anyway, and y is positive if x · scale + shift is. This is done only if y goes into one
convolution and nowhere else. If gradients meet, as at a residual connection, one kernel adds, masks and writes them.

The changed order of operations in float32 matters far less than the rounding to bfloat16, and rounding keeps the sign.
In full precision nothing is changed.
"""

from typing import Any

import torch
from torch import Tensor, fx

from transnet.train.inductor.graph_edit import insert_before

_aten, _prims = torch.ops.aten, torch.ops.prims


def rewrite_batchnorm(rounded: fx.Node) -> bool:
    """Rewrite the batch norm whose result is rounded at this node of a joint graph; return whether there is one."""
    pre: Any = rounded.args[0]
    wide = pre.meta["val"].dtype
    if rounded.meta["val"].dtype.itemsize >= wide.itemsize or (operands := _normalised(pre)) is None:
        return False

    def scaled(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scale, shift = _materialized(rstd * weight), _materialized(bias - mean * rstd * weight)
        return scale, shift, x.to(wide) * scale + shift

    scale, shift, new = insert_before(pre, scaled, *operands)
    masks = _masks(rounded)
    pre.replace_all_uses_with(new)
    for mask in masks:
        # The factors are swapped. Otherwise the compiler would recognise the forward pass's product, and keep that or
        # the mask instead of x.
        positive = insert_before(
            mask, lambda x, scale, shift: (scale * x.to(wide) + shift <= 0,), operands[0], scale, shift
        )
        mask.replace_all_uses_with(positive[0])
    return True


def _materialized(x: Tensor) -> Tensor:
    """Force materialisation, because Inductor would otherwise recompute ``x`` for every value that needs it."""
    return _prims.inductor_force_stride_order(x, x.stride())


def _masks(rounded: fx.Node) -> list[fx.Node]:
    """The masks of a ReLU that is the only user of ``rounded`` and whose result only one convolution uses."""
    users = list(rounded.users)
    if len(users) != 1 or not _is(relu := users[0], _aten.relu.default):
        return []
    masks = [user for user in relu.users if _is(user, _aten.le.Scalar) and user.args[1] == 0]
    uses = [user for user in relu.users if user not in masks and not _is(user, _aten.convolution_backward.default)]
    return masks if len(uses) == 1 and _is(uses[0], _aten.convolution.default) else []


def _normalised(pre: Any) -> tuple[fx.Node, ...] | None:
    """The operands of (x − mean) · rstd · weight + bias, in this order."""
    if not _is(pre, _aten.add.Tensor) or not _is(pre.args[0], _aten.mul.Tensor):
        return None
    scaled, bias = pre.args[:2]
    unit, weight = scaled.args[:2]
    if not _is(unit, _aten.mul.Tensor) or not _is(unit.args[0], _aten.sub.Tensor):
        return None
    centred, rstd = unit.args[:2]
    x, mean = centred.args[:2]
    operands = x, mean, rstd, weight, bias
    if not all(isinstance(operand, fx.Node) for operand in operands) or not _is(rstd, _aten.rsqrt.default):
        return None
    shapes = [operand.meta["val"].shape for operand in operands[1:]]
    per_channel = torch.broadcast_shapes(*shapes).numel() == weight.meta["val"].numel()  # not so in a layer norm
    return operands if per_channel else None


def _is(node: Any, target: Any) -> bool:
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target == target
