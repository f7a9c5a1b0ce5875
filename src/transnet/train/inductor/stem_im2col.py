"""The first convolution of a compiled step as a product of columns, for a GPU.

Images have three channels, but cuDNN's kernels need eight or more: it pads the images, and mostly multiplies zeros.
Here the neighbourhoods are first arranged as columns of 3 · 3 · 3 = 27 values, and the convolution becomes one of 1×1.
This is done only if the images need no gradient, and if the columns are no larger than the convolution's output.
"""

from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.checkpoint import CheckpointPolicy

from transnet.train.inductor.graph_edit import insert_before

_aten = torch.ops.aten
_LANES = 8  # 16-bit values in the 16 bytes that a GPU reads at once; columns are padded to a multiple of it


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
    return _whole_lanes(windows.flatten(3)).permute(0, 3, 1, 2)


def kernel_of_columns(weight: Tensor) -> Tensor:
    """A kernel (O, C, h, w) as the 1×1 kernel (O, L, 1, 1) for `columns`."""
    flat = _whole_lanes(weight.permute(0, 2, 3, 1).flatten(1))
    return flat.reshape(*flat.shape, 1, 1)


def _kernel_gradient(flat: Tensor, shape: list[int]) -> Tensor:
    """The gradient with respect to `kernel_of_columns`' result, as one for a kernel of ``shape``."""
    _, channels, height, width = shape
    used = flat.flatten(1)[:, : channels * height * width]
    return used.unflatten(1, (height, width, channels)).permute(0, 3, 1, 2)


def _whole_lanes(x: Tensor) -> Tensor:
    return _aten.constant_pad_nd(x, [0, -x.shape[-1] % _LANES])


def rewrite_convolution(node: fx.Node) -> bool:
    """Rewrite one convolution of a joint graph, forward and backward; return whether that was possible."""
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
    calls = [call for call in gradients if call.args[1:3] == (x, weight) and call.args[4:10] == args[3:]]
    if any(call.args[-1] != [False, True, False] for call in calls):
        return False
    rest = [[1, 1], [0, 0], [1, 1], False, [0, 0], 1]

    def forward(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        arranged, flat = columns(x, shape[2:], stride, padding), kernel_of_columns(weight)
        return arranged, flat, _aten.convolution(arranged, flat, None, *rest)

    arranged, flat, out = insert_before(node, forward, x, weight)
    arranged.meta["recompute"] = CheckpointPolicy.MUST_SAVE  # recomputing the columns would write them again
    node.replace_all_uses_with(out)

    def gradient(dy: Tensor, arranged: Tensor, flat: Tensor) -> tuple[Tensor]:
        result = _aten.convolution_backward(dy, arranged, flat, None, *rest, [False, True, False])[1]
        return (_kernel_gradient(result, shape),)

    for call in calls:
        (new,) = insert_before(call, gradient, call.args[0], arranged, flat)
        for item in list(call.users):  # of the tuple (images, kernel, bias), only the kernel's gradient is used
            if item.args[1] == 1:
                item.replace_all_uses_with(new)
            node.graph.erase_node(item)
        node.graph.erase_node(call)
    return True
