"""A compiled step's first convolution as a product of columns, for a GPU.

Images have three channels, and cuDNN's kernels want eight or more: it pads the images, and multiplies mostly zeros.
Here the neighbourhoods are laid out as columns first, 3 · 3 · 3 = 27 values of which each is used, and the convolution
becomes one of 1×1. Only where the images themselves need no gradient, and where the columns are no larger than what
the convolution writes.

It acts on the joint graph of forward and backward pass, before that is split.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import CheckpointPolicy

_aten = torch.ops.aten
_LANES = 8  # values of 16 bits in the 16 bytes a GPU reads at once: the columns' length is rounded up to it


class StemAsColumns(CustomGraphPass):
    """For `torch.compile(…, options={"joint_custom_post_pass": StemAsColumns()})`.

    Attributes:
        rewritten: how many convolutions of the last graph.
    """

    rewritten = 0

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite a joint graph in place."""
        self.rewritten = sum(map(_rewrite, _calls(graph, _aten.convolution.default)))
        graph.eliminate_dead_code()
        graph.lint()

    def uuid(self) -> Any:
        """The compiler's cache keeps graphs made by other versions of this file apart."""
        return get_hash_for_files((__file__,))


def columns(x: Tensor, kernel: list[int], stride: list[int], padding: list[int]) -> Tensor:
    """Each output pixel's neighbourhood in ``x`` (B, C, H, W) as channels (B, L, H', W'), ordered y, x, channel.

    L is rounded up to whole lanes with zeros.
    """
    x = _aten.constant_pad_nd(x, [padding[1], padding[1], padding[0], padding[0]])
    x = x.permute(0, 2, 3, 1).contiguous()
    images, height, width, channels = x.shape
    down, across = ((side - k) // s + 1 for side, k, s in zip((height, width), kernel, stride, strict=True))
    row = width * channels
    windows = x.as_strided(
        (images, down, across, kernel[0], kernel[1] * channels),
        (height * row, stride[0] * row, stride[1] * channels, row, 1),
    )
    return _whole_lanes(windows.flatten(3)).permute(0, 3, 1, 2)


def kernel_of_columns(weight: Tensor) -> Tensor:
    """A kernel (O, C, h, w) as the 1×1 kernel (O, L, 1, 1) for `columns`."""
    flat = _whole_lanes(weight.permute(0, 2, 3, 1).flatten(1))
    return flat.reshape(*flat.shape, 1, 1)


def kernel_from_columns(flat: Tensor, shape: list[int]) -> Tensor:
    """The gradient with respect to `kernel_of_columns`' result, as one for a kernel of ``shape``."""
    _, channels, height, width = shape
    used = flat.flatten(1)[:, : channels * height * width]
    return used.unflatten(1, (height, width, channels)).permute(0, 3, 1, 2)


def _whole_lanes(x: Tensor) -> Tensor:
    return _aten.constant_pad_nd(x, [0, -x.shape[-1] % _LANES])


def _rewrite(node: fx.Node) -> bool:
    """Rewrite one convolution, forward and backward."""
    args: Any = node.args
    x, weight, bias, stride, padding, dilation, transposed, _, groups = args
    shape, before = list(weight.meta["val"].shape), x.meta["val"]
    if bias is not None or transposed or groups != 1 or len(shape) != 4 or shape[1] >= _LANES:
        return False
    length = shape[1] * shape[2] * shape[3]
    if length + -length % _LANES > shape[0] or list(dilation) != [1, 1]:
        return False
    if not node.meta["val"].is_contiguous(memory_format=torch.channels_last):  # as the columns' product will be
        return False
    if not any(padding) and before.storage_offset():  # part of another tensor, whose memory the columns would read
        return False
    calls = [
        call
        for call in _calls(node.graph, _aten.convolution_backward.default)
        if call.args[1:3] == (x, weight) and call.args[4:10] == args[3:]
    ]
    if any(call.args[-1] != [False, True, False] for call in calls):
        return False
    rest = [[1, 1], [0, 0], [1, 1], False, [0, 0], 1]

    def forward(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        laid, flat = columns(x, shape[2:], stride, padding), kernel_of_columns(weight)
        return laid, flat, _aten.convolution(laid, flat, None, *rest)

    laid, flat, out = _spliced(node, forward, x, weight)
    laid.meta["recompute"] = CheckpointPolicy.MUST_SAVE  # to lay them out again would be to write them again
    node.replace_all_uses_with(out)

    def gradient(dy: Tensor, laid: Tensor, flat: Tensor) -> tuple[Tensor]:
        result = _aten.convolution_backward(dy, laid, flat, None, *rest, [False, True, False])[1]
        return (kernel_from_columns(result, shape),)

    for call in calls:
        found = _spliced(call, gradient, call.args[0], laid, flat)[0]
        for item in list(call.users):  # of the tuple (images, kernel, bias); only the kernel's is asked for
            if item.args[1] == 1:
                item.replace_all_uses_with(found)
            node.graph.erase_node(item)
        node.graph.erase_node(call)
    return True


def _calls(graph: fx.Graph, target: Any) -> list[fx.Node]:
    return list(graph.find_nodes(op="call_function", target=target))


def _spliced(at: fx.Node, function: Callable[..., Any], *args: Any) -> list[fx.Node]:
    """Put ``function``'s graph before ``at``, on ``args``; its results' nodes."""
    values = [arg.meta["val"] for arg in args]
    with values[0].fake_mode:
        traced = make_fx(function, decomposition_table=select_decomp_table())(*values)
    made: dict[fx.Node, Any] = dict(zip(traced.graph.find_nodes(op="placeholder"), args, strict=True))
    with at.graph.inserting_before(at):
        for node in traced.graph.nodes:
            if node.op == "output":
                return [made[result] for result in node.args[0]]
            if node not in made:
                made[node] = at.graph.node_copy(node, made.__getitem__)
                # Which pass it belongs to and where it came from are the replaced node's.
                made[node].meta = {
                    **at.meta,
                    **{key: node.meta[key] for key in ("val", "tensor_meta") if key in node.meta},
                }
    raise AssertionError("a graph without an output")
