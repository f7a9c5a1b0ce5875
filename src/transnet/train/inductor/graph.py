"""Rewrite a compiled training step for a GPU, before forward and backward are separated.

**columns: the first convolution as a product of columns.** Images have three channels, but cuDNN's kernels need eight
or more: it pads the images, and mostly multiplies zeros. Here the neighbourhoods are first arranged as columns of 27
values (3 × 3 × 3), and the convolution becomes one of 1×1. This is done only if the images need no gradient, and if the
columns are no larger than the convolution's output.

**batchnorm: batch norm as one product and one sum per value.** A step in mixed precision is limited by reading
activations. The compiler normalises each value, two bytes, with four numbers of its channel, sixteen bytes. Two
suffice:

    pre = (x − mean) · rstd · weight + bias   ─▶   pre = x · scale + shift

The gradient of ReLU needs the sign of its result y. The compiler reads all of y for that, twice. But it reads the
convolution's output x there anyway, and y is positive if x · scale + shift is. This is done only if y goes into one
convolution and nowhere else. The changed order of operations in float32 matters far less than the rounding to bfloat16,
and rounding keeps the sign. In full precision nothing is changed.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import CheckpointPolicy

from transnet.train.inductor import GRAPH

_aten, _prims = torch.ops.aten, torch.ops.prims
_LANES = 8  # 16-bit values in the 16 bytes that a GPU reads at once; columns are padded to a multiple of it


class RewriteGraph(CustomGraphPass):
    """Use it as `torch.compile(…, options={"joint_custom_post_pass": RewriteGraph()})`."""

    def __init__(self, names: Iterable[str] = GRAPH) -> None:
        self.counts = dict.fromkeys(names, 0)  # nodes of the last graph that each rewrite has changed

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite a joint graph in place."""
        for name in self.counts:
            target, rewrite = _REWRITES[name]
            nodes = graph.find_nodes(op="call_function", target=target)
            self.counts[name] = sum(map(rewrite, list(nodes)))
        graph.eliminate_dead_code()
        graph.lint()

    def uuid(self) -> object:
        """A hash of this file and the names, so that the compiler's cache does not reuse graphs of other rewrites."""
        return get_hash_for_files((__file__,), ",".join(self.counts))


def _insert_before(at: fx.Node, function: Callable[..., Any], *args: Any) -> list[fx.Node]:
    """Insert the graph of ``function(*args)`` before a node, and return the nodes of its results."""
    values = [arg.meta["val"] for arg in args]
    with values[0].fake_mode:
        traced = make_fx(function, decomposition_table=select_decomp_table())(*values)
    copies: dict[fx.Node, Any] = dict(zip(traced.graph.find_nodes(op="placeholder"), args, strict=True))
    with at.graph.inserting_before(at):
        for node in traced.graph.nodes:
            if node.op not in ("placeholder", "output"):
                copies[node] = at.graph.node_copy(node, copies.__getitem__)
                # Keep the replaced node's records of its pass and its origin.
                own = {key: node.meta[key] for key in ("val", "tensor_meta") if key in node.meta}
                copies[node].meta = {**at.meta, **own}
    results: Any = traced.graph.output_node().args[0]
    return [copies[result] for result in results]


def columns(x: Tensor, kernel: list[int], stride: list[int], padding: list[int]) -> Tensor:
    """Each output pixel's neighbourhood in ``x`` (B, C, H, W) as channels (B, L, H', W'), ordered y, x, channel."""
    x = _aten.constant_pad_nd(x, [padding[1], padding[1], padding[0], padding[0]])
    x = x.permute(0, 2, 3, 1).contiguous()
    images, height, width, channels = x.shape
    down, across = ((side - k) // s + 1 for side, k, s in zip((height, width), kernel, stride, strict=True))
    row = width * channels
    windows = x.as_strided(
        (images, down, across, kernel[0], kernel[1] * channels),
        (height * row, stride[0] * row, stride[1] * channels, row, 1),
    )
    flat = windows.flatten(3)
    return _aten.constant_pad_nd(flat, [0, -flat.shape[-1] % _LANES]).permute(0, 3, 1, 2)


def kernel_of_columns(weight: Tensor) -> Tensor:
    """A kernel (O, C, h, w) as the 1×1 kernel (O, L, 1, 1) for `columns`."""
    flat = weight.permute(0, 2, 3, 1).flatten(1)
    flat = _aten.constant_pad_nd(flat, [0, -flat.shape[-1] % _LANES])
    return flat.reshape(*flat.shape, 1, 1)


def _kernel_gradient(flat: Tensor, shape: list[int]) -> Tensor:
    """The gradient with respect to `kernel_of_columns`' result, as one for a kernel of ``shape``."""
    _, channels, height, width = shape
    used = flat.flatten(1)[:, : channels * height * width]
    return used.unflatten(1, (height, width, channels)).permute(0, 3, 1, 2)


def _rewrite_convolution(node: fx.Node) -> bool:
    """Rewrite a convolution of a joint graph, forward and backward; return whether that was possible."""
    args: Any = node.args
    x, weight, bias, stride, padding, dilation, transposed, _, groups = args
    shape, before = list(weight.meta["val"].shape), x.meta["val"]
    if bias is not None or transposed or groups != 1 or len(shape) != 4 or shape[1] >= _LANES:
        return False
    length = shape[1] * shape[2] * shape[3]
    if length + -length % _LANES > shape[0] or list(dilation) != [1, 1]:
        return False
    if not node.meta["val"].is_contiguous(memory_format=torch.channels_last):  # like the product of the columns
        return False
    if not any(padding) and before.storage_offset():  # a view, beyond which the columns would read
        return False
    gradients = node.graph.find_nodes(op="call_function", target=_aten.convolution_backward.default)
    own = [call for call in gradients if call.args[1:3] == (x, weight) and call.args[4:10] == args[3:]]
    if any(call.args[-1] != [False, True, False] for call in own):
        return False
    rest = [[1, 1], [0, 0], [1, 1], False, [0, 0], 1]

    def forward(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        arranged, flat = columns(x, shape[2:], stride, padding), kernel_of_columns(weight)
        return arranged, flat, _aten.convolution(arranged, flat, None, *rest)

    arranged, flat, out = _insert_before(node, forward, x, weight)
    arranged.meta["recompute"] = CheckpointPolicy.MUST_SAVE  # recomputing the columns would write them again
    node.replace_all_uses_with(out)

    def gradient(dy: Tensor, arranged: Tensor, flat: Tensor) -> tuple[Tensor]:
        result = _aten.convolution_backward(dy, arranged, flat, None, *rest, [False, True, False])[1]
        return (_kernel_gradient(result, shape),)

    for call in own:
        (new,) = _insert_before(call, gradient, call.args[0], arranged, flat)
        for item in list(call.users):  # of the tuple (images, kernel, bias), only the kernel's gradient is used
            if item.args[1] == 1:
                item.replace_all_uses_with(new)
            node.graph.erase_node(item)
        node.graph.erase_node(call)
    return True


def _rewrite_batchnorm(rounded: fx.Node) -> bool:
    """Rewrite the batch norm whose result is rounded at this node of a joint graph; return whether there is one."""
    pre: Any = rounded.args[0]
    wide = pre.meta["val"].dtype
    if rounded.meta["val"].dtype.itemsize >= wide.itemsize or (operands := _normalised(pre)) is None:
        return False

    def scaled(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scale, shift = _materialized(rstd * weight), _materialized(bias - mean * rstd * weight)
        return scale, shift, x.to(wide) * scale + shift

    def masked(x: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor]:
        # With the factors swapped, or the compiler would recognise the forward pass's product and keep it instead of x.
        return (scale * x.to(wide) + shift <= 0,)

    scale, shift, new = _insert_before(pre, scaled, *operands)
    masks = _masks(rounded)
    pre.replace_all_uses_with(new)
    for mask in masks:
        mask.replace_all_uses_with(_insert_before(mask, masked, operands[0], scale, shift)[0])
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


_REWRITES = {  # each with the calls that it is tried on
    "columns": (_aten.convolution.default, _rewrite_convolution),
    "batchnorm": (_prims.convert_element_type.default, _rewrite_batchnorm),
}
