"""Where a run computes and in which precision, and whether its images fit there."""

import math
import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import torch
from torch import nn

from transnet.console import counted
from transnet.data import DataSet
from transnet.errors import ConfigError
from transnet.train.distributed import World

Autocast = Callable[[], AbstractContextManager[Any]]

# Messages of errors that are not a `torch.OutOfMemoryError`.
_OUT_OF_MEMORY = "DefaultCPUAllocator: can't allocate|(error:|MPS backend) out of memory|CU(DNN|BLAS)_STATUS_ALLOC"


def find_device(name: str, world: World) -> torch.device:
    """The device that a setting names; each of several processes gets its own GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if re.fullmatch(r"cpu|mps|cuda(:\d+)?", name) is None:
        raise ConfigError(f"{name!r} was given; auto, cpu, cuda, cuda:1 or mps would work", field="device")
    device = torch.device(name)
    if name == "mps" and (world.size > 1 or not torch.backends.mps.is_available()):
        raise ConfigError("mps was given; it needs an Apple GPU and a single process; give cpu", field="device")
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise ConfigError("this machine has no CUDA device; give cpu", field="device")
    if (device.index or 0) >= torch.cuda.device_count():
        known = f"cuda:0…{torch.cuda.device_count() - 1}"
        raise ConfigError(f"{name} was given; this machine has {known}", field="device")
    if world.size > 1:
        device = torch.device("cuda", torch.cuda.current_device())
    if device.index is not None:
        torch.cuda.set_device(device)  # streams, graphs and seeds are those of the current device
    return device


def device_name(device: torch.device) -> str:
    """The name of a device, for results and messages."""
    cpu = f"CPU, {counted(torch.get_num_threads(), 'thread')}"
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu if device.type == "cpu" else "Apple GPU"


@contextmanager
def determinism(on: bool, *, cuda: bool) -> Iterator[None]:
    """Make equal runs bit-identical within the block. If off, a GPU uses its fastest convolutions."""
    mode = torch.get_deterministic_debug_mode()
    if cuda and on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(on)
    # This debugging aid costs time in every allocation.
    no_fill = _setting(torch.utils.deterministic, "fill_uninitialized_memory", False)
    try:
        with no_fill, _setting(torch.backends.cudnn, "benchmark", cuda and not on):
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)


def no_cudnn_benchmark() -> AbstractContextManager[None]:
    """Let cuDNN choose algorithms without timing them, within the block: for shapes that run only a few times."""
    return _setting(torch.backends.cudnn, "benchmark", False)


@contextmanager
def _setting(module: object, name: str, value: bool) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the cause of an error is that a device or the machine is out of memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or re.search(_OUT_OF_MEMORY, str(error)):
        return True
    # A failed capture of a CUDA graph has its cause as context only.
    return error.__context__ is not None and is_out_of_memory(error.__context__)


def has_bf16(device: torch.device) -> bool:
    """Whether the device computes in bf16 without emulating it."""
    if device.type != "cpu":
        return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if platform.machine() in ("aarch64", "arm64"):
        return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return native and torch.backends.cpu.get_cpu_capability() == "AVX512"  # which the user may have turned off


def precision_for(device: torch.device, setting: Literal["auto", "bf16", "fp32"]) -> Literal["bf16", "fp32"]:
    """The setting, or for ``auto`` and for a CPU what suits the device."""
    native = has_bf16(device)
    if setting == "auto":
        return "bf16" if native and device.type == "cuda" else "fp32"
    return setting if native or device.type != "cpu" else "fp32"


def gains_from_bf16(net: nn.Module, device: torch.device) -> bool:
    """Whether a CPU would train the network faster in bf16, which makes convolutions in groups slower."""
    groups = {layer.groups for layer in net.modules() if isinstance(layer, nn.Conv2d)}
    return device.type == "cpu" and has_bf16(device) and groups <= {1}


def use_channels_last(setting: str, device: torch.device, net: nn.Module, channels: int) -> bool:
    """Whether to use the channels-last format: the setting, or for ``auto`` where it was measured to be faster."""
    if setting != "auto" or device.type != "cpu":
        return setting == "yes" or (setting == "auto" and device.type == "cuda")
    convolutions, norms = (sum(isinstance(m, kind) for m in net.modules()) for kind in (nn.Conv2d, nn.BatchNorm2d))
    fast = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return fast and channels == 3 and 2 * norms > convolutions


def is_tiny(net: nn.Module, pixels: int) -> bool:
    """Whether a second thread would mostly wait, if a step puts that many pixels through the network."""
    return sum(parameter.numel() for parameter in net.parameters()) * pixels < 3e9


def set_threads(net: nn.Module, pixels: int) -> None:
    """Use `usable_threads`, or one for a tiny network, unless the environment sets the number."""
    if not {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & set(os.environ):
        torch.set_num_threads(1 if is_tiny(net, pixels) else usable_threads())


def usable_threads(root: Path = Path("/")) -> int:
    """The threads of torch, but no more than the CPUs that Linux's control groups allow this process."""
    found, own = [float(torch.get_num_threads())], root / "proc/self/cgroup"
    for line in own.read_text().splitlines() if own.exists() else ():
        _, controllers, path = line.split(":", 2)  # no controllers: version 2
        if controllers and "cpu" not in controllers.split(","):
            continue
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        # In a container the path may be that of the host, but the container's own group is at the top.
        group = PurePosixPath("cpu" if controllers else "", path.lstrip("/"))
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):  # without a limit, version 2 writes "max", and version 1 −1
                text = " ".join((root / "sys/fs/cgroup" / folder / file).read_text() for file in files)
                quota, period = map(int, text.split())
                found += [quota / period] if quota > 0 else []
    return max(int(min(found)), 1)


def autocast_for(precision: str, device: torch.device) -> Autocast:
    """The context manager for forward passes."""
    if precision == "fp32":
        return nullcontext
    return lambda: torch.autocast(device.type, dtype=torch.bfloat16)


def fits_on_device(data: DataSet, storage: str, device: torch.device) -> bool:
    """Whether to keep the images on the device: at least half of its free memory must be left for the network."""
    if storage != "auto":
        return storage == "resident"
    needed = sum(split.resident_bytes(data.geometry.stored) for split in (data.train, data.val, data.test) if split)
    return needed < free_memory(device) / 2


def free_memory(device: torch.device) -> float:
    """Bytes of the device's memory that nothing uses."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _available_memory()


def _available_memory() -> float:
    """Memory available without swapping, as Linux estimates it; elsewhere it is assumed to suffice."""
    try:
        with open("/proc/meminfo") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return math.inf
