"""Load weights from a file of unknown origin into a model, without trusting the file.

A safetensors file holds numbers and a header with their names, shapes and types. Nothing in it is executed, but the
header may claim any size. So the header is read first and compared with the model, which is built without memory (on
the meta device). Only if both agree is the model built and the rest of the file read.
"""

import struct
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from transnet.errors import FileError, TransnetError

LONGEST_HEADER = 16 * 2**20  # a network of ten thousand tensors has a header of about 1 MB
_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip

Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]


def load_weights(
    path: Path, build: Callable[[], nn.Module], what: str, *, finish: Callable[[nn.Module], nn.Module] | None = None
) -> nn.Module:
    """Build a model and load its weights from a safetensors file; in evaluation mode, on the CPU.

    Args:
        path: the file.
        build: creates the model with any weights; called on the meta device first, then again.
        what: the model's name, for messages.
        finish: changes the built model as folding does: kernels may turn, and ``folded_pads`` are added.

    Raises:
        FileError: if the file is damaged, does not fit the model or contains values that are not finite.
    """
    found = read_shapes(path)
    try:
        with torch.device("meta"):
            blank = build().state_dict()
    except TransnetError:
        raise
    except Exception as error:  # a library's own reasons why these settings make no network
        raise FileError(f"{what} cannot be built ({type(error).__name__}: {error})") from error
    expected = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in blank.items()}
    if finish is None:
        compare_shapes(path, found, expected, what)
        model = build()
    else:
        given = {name: shape for name, shape in found.items() if not name.endswith("folded_pads")}
        compare_shapes(path, _unturned(given), _unturned(expected), what)
        model = finish(build())
    tensors = read_tensors(path)
    try:
        model.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        raise FileError(f"{path} does not fit {what}: {str(error).splitlines()[-1].strip()}") from error
    return model.eval()


def _unturned(shapes: Shapes) -> Shapes:
    """Shapes in which a kernel and its rotation by 90° are equal. Loading with strict=True tells them apart."""
    return {name: ((*shape[:2], *sorted(shape[2:])), dtype) for name, (shape, dtype) in shapes.items()}


def read_shapes(path: Path) -> Shapes:
    """Read the names, shapes and types in a safetensors file from its header alone."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileError(f"{path} does not exist or is not a file; it should hold a model's weights")
    size = path.stat().st_size
    with open(path, "rb") as file:
        start = file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    if len(start) < 8 or length + 8 > size:
        raise FileError(f"{path} is damaged: a header of {length:,} bytes in a file of {size:,}")
    if length > LONGEST_HEADER:
        raise FileError(f"{path} has a header of {length:,} bytes; at most {LONGEST_HEADER:,} are read")
    try:
        with safe_open(str(path), framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            found = {name: (tuple(one.get_shape()), one.get_dtype()) for name, one in slices.items()}
    except (SafetensorError, ValueError, TypeError, OverflowError, OSError) as error:
        raise FileError(f"{path} is damaged ({error})") from error
    for name, (_, kind) in found.items():
        if kind not in _TYPES:
            raise FileError(f"{path}: {name!r} is of type {kind}; known are {' '.join(_TYPES)}")
    return {name: (shape, _TYPES[kind]) for name, (shape, kind) in found.items()}


def compare_shapes(path: Path, found: Shapes, expected: Shapes, what: str) -> None:
    """Raise if a file's tensors do not have the names, shapes and types of a model's."""
    wrong = [f"{name!r} is missing" for name in expected if name not in found]
    wrong += [f"{name!r} is none of the model's" for name in found if name not in expected]
    for name in (name for name in expected if name in found):  # in the order of the model
        (given, given_kind), (shape, kind) = found[name], expected[name]
        if given != shape:
            wrong.append(f"{name!r} has shape {given}, the model's is {shape}")
        elif given_kind.is_floating_point != kind.is_floating_point:
            wrong.append(f"{name!r} is {given_kind}, the model's is {kind}")
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise FileError(f"{path} does not fit {what}: {wrong[0]}{more}")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors, and raise if any value is not finite."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except (SafetensorError, ValueError, RuntimeError, OSError) as error:
        raise FileError(f"{path} is damaged ({error})") from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise FileError(f"{path}: {name!r} holds NaN or infinite values; its training diverged")
    return tensors
