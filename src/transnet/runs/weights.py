"""Load weights from a file of unknown origin into a model, without trusting the file.

Nothing in a safetensors file is executed, but its header may claim tensors of any size. So the header is read first and
compared with the model, which is built without memory (on the meta device). Only if both agree is the model built and
the rest of the file read.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from transnet.errors import FileError, TransnetError

LONGEST_HEADER = 16 * 2**20  # a network of ten thousand tensors has a header of about 1 MB


def load_weights(
    path: Path, build: Callable[[], nn.Module], what: str, *, finish: Callable[[nn.Module], nn.Module] | None = None
) -> nn.Module:
    """Build a model and load its weights from a safetensors file; in evaluation mode, on the CPU.

    ``build`` is called twice, first on the meta device. ``what`` names the model in messages. ``finish`` changes the
    built model as folding does: kernels may turn, and ``folded_pads`` are added.
    """
    found = read_shapes(path)
    try:
        with torch.device("meta"):
            blank = build().to("meta")  # a backbone that the user passed in is on another device
    except TransnetError:
        raise
    except Exception as error:  # a library's own reasons why these settings make no network
        raise FileError(f"{what} cannot be built ({type(error).__name__}: {error})") from error
    if finish is not None:
        found = _unturned(found, blank)
    _load(blank, {name: torch.empty(shape, device="meta") for name, shape in found.items()}, path, what)
    model = build() if finish is None else finish(build())
    tensors = _read_tensors(path)
    for name, own in model.state_dict().items():
        if name in tensors and tensors[name].is_floating_point() != own.is_floating_point():
            raise FileError(f"{path} does not fit {what}: {name} is {tensors[name].dtype}, the model's is {own.dtype}")
    _load(model, tensors, path, what)
    return model.eval()


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Read the names and shapes of the tensors in a safetensors file from its header alone."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileError(f"{path} does not exist or is not a file; it should hold a model's weights")
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > LONGEST_HEADER:
        raise FileError(f"{path} is damaged: a header of {length:,} bytes; at most {LONGEST_HEADER:,} are read")
    try:
        with safe_open(str(path), framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, TypeError, OverflowError, OSError) as error:
        raise FileError(f"{path} is damaged ({error})") from error


def _unturned(found: dict[str, tuple[int, ...]], plain: nn.Module) -> dict[str, tuple[int, ...]]:
    """The shapes of a folded model's tensors before folding, which may have turned kernels by 90°."""
    before = {name: shape for name, shape in found.items() if not name.endswith("folded_pads")}
    for name, tensor in plain.state_dict().items():
        if name in before and sorted(before[name]) == sorted(tensor.shape):
            before[name] = tuple(tensor.shape)
    return before


def _load(model: nn.Module, tensors: dict[str, Tensor], path: Path, what: str) -> None:
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        reason = str(error).splitlines()[1].strip()
        raise FileError(f"{path} does not fit {what}: {reason:.300}") from error


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors, and raise if any value is not finite."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
        infinite = [name for name, t in tensors.items() if t.is_floating_point() and not torch.isfinite(t).all()]
    except (SafetensorError, ValueError, RuntimeError, OSError) as error:
        raise FileError(f"{path} is damaged ({error})") from error
    if infinite:
        raise FileError(f"{path}: {infinite[0]!r} holds NaN or infinite values; its training diverged")
    return tensors
