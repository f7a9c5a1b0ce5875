"""Less memory traffic in the backward pass of batch norm with ReLU.

A compiled step in mixed precision is bound by memory: after the convolutions, most of its time goes to reading and
writing the activations around batch norm. The gradient of ReLU asks where its output y was positive, and the compiler
reads all of y for that, twice: once for the sums that batch norm's gradient needs, once for the gradient itself.
But the convolution's output x is read there anyway, and y > 0 wherever x · scale + shift > 0, with one scale and one
shift a channel. So the graph is rewritten before it is split into forward and backward:

    pre = (x − mean) · rstd · w + b        pre = x · scale + shift
    y = relu(bf16(pre))              ─▶    y = relu(bf16(pre))
    mask = y ≤ 0                           mask = pre ≤ 0

Scale and shift are kept from the forward pass. The forward pass rounds in another order: a float32's rounding, before
the result is rounded to bfloat16.
"""

from typing import Any, NamedTuple

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.utils.checkpoint import CheckpointPolicy

_aten, _prims = torch.ops.aten, torch.ops.prims


class MaskFromInput(CustomGraphPass):
    """For `torch.compile(…, options={"joint_custom_post_pass": MaskFromInput()})`.

    Attributes:
        rewritten: how many pairs of batch norm and ReLU the last graph had.
    """

    rewritten = 0

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite every such pair of a joint graph, in place."""
        self.rewritten = 0
        for relu in graph.find_nodes(op="call_function", target=_aten.relu.default):
            masks = [user for user in relu.users if _is(user, _aten.le.Scalar) and user.args[1] == 0]
            rounded = relu.args[0]
            if not masks or not _is(rounded, _prims.convert_element_type.default):
                continue
            pre = rounded.args[0]
            if (found := _normalised(pre)) is not None:
                _rewrite(graph, pre, found, masks)
                self.rewritten += 1
        if self.rewritten:
            graph.eliminate_dead_code()
            graph.lint()

    def uuid(self) -> Any:
        """The compiler's cache keeps graphs made by other versions of this file apart."""
        return get_hash_for_files((__file__,))


class _Normalised(NamedTuple):
    """The parts of (x − mean) · rstd · weight + bias."""

    x: fx.Node
    mean: fx.Node
    rstd: fx.Node
    weight: fx.Node
    bias: fx.Node


def _normalised(pre: Any) -> _Normalised | None:
    if not _is(pre, _aten.add.Tensor) or not _is(pre.args[0], _aten.mul.Tensor):
        return None
    scaled, bias = pre.args[:2]
    centred, weight = scaled.args[:2]
    if not _is(centred, _aten.mul.Tensor) or not _is(centred.args[0], _aten.sub.Tensor):
        return None
    difference, rstd = centred.args[:2]
    if not _is(rstd, _aten.rsqrt.default):
        return None
    x, mean = difference.args[:2]
    return _Normalised(x, mean, rstd, weight, bias)


def _rewrite(graph: fx.Graph, pre: fx.Node, found: _Normalised, masks: list[fx.Node]) -> None:
    def call(target: Any, *args: Any) -> fx.Node:
        node = graph.call_function(target, args)
        node.meta["val"] = target(*(arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args))
        return node

    with graph.inserting_before(pre):
        scale = call(_aten.mul.Tensor, found.rstd, found.weight)
        shift = call(_aten.sub.Tensor, found.bias, call(_aten.mul.Tensor, found.mean, scale))
        for kept in (scale, shift):  # made again in the backward pass, they would be four reads instead of two
            kept.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        x = call(_prims.convert_element_type.default, found.x, pre.meta["val"].dtype)
        new = call(_aten.add.Tensor, call(_aten.mul.Tensor, x, scale), shift)
    pre.replace_all_uses_with(new)
    for mask in masks:
        mask.args = (new, 0)


def _is(node: Any, target: Any) -> bool:
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target == target
