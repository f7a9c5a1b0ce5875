"""Where and how a run computes: device, precision, memory, optimizer."""

import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from transnet.console import counted
from transnet.data import DataSet
from transnet.errors import ConfigError
from transnet.model import TransNet
from transnet.runs.config import TrainConfig
from transnet.train.distributed import World

Autocast = Callable[[], AbstractContextManager[Any]]


def sgd(net: TransNet, config: TrainConfig, device: torch.device) -> torch.optim.SGD:
    """The optimizer; on a GPU fused, and with a learning rate that a captured step can change."""
    cuda = device.type == "cuda"
    optimizer = torch.optim.SGD(
        net.parameters(),
        lr=torch.tensor(config.lr, device=device) if cuda else config.lr,
        momentum=config.momentum,
        nesterov=config.nesterov and config.momentum > 0,
        weight_decay=config.weight_decay,
        fused=cuda,
    )
    # Zeros are what a first step without momentum amounts to, and a place to restore into.
    for parameter in net.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def find_device(name: str, processes: World) -> torch.device:
    """The device a user asked for; each of several processes gets its own GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if re.fullmatch(r"cpu|cuda(:\d+)?", name) is None:
        raise ConfigError(f"{name!r} was given; auto, cpu, cuda or cuda:1 would work", field="device")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("this machine has no CUDA device; use `device` cpu", field="device")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"{name} was given; this machine has cuda:0…{torch.cuda.device_count() - 1}", field="device")
    if device.type == "cuda" and processes.size > 1:
        device = torch.device("cuda", torch.cuda.current_device())
    if device.index is not None:
        torch.cuda.set_device(device)  # streams, graphs and seeds are those of the current one
    return device


def device_name(device: torch.device) -> str:
    """For results and messages."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {counted(torch.get_num_threads(), 'thread')}"


@contextmanager
def determinism(on: bool, *, cuda: bool) -> Iterator[None]:
    """While the block lasts, equal runs are bit-identical; without it a GPU takes its fastest convolutions."""
    before = torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    if cuda and on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(on)
    # A debugging aid that costs time in every allocation.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = cuda and not on
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before[0])
        torch.backends.cudnn.benchmark = before[1]
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]


@contextmanager
def untried_convolutions() -> Iterator[None]:
    """While the block lasts, cuDNN takes the algorithms that it expects to be fastest, and times none.

    For shapes that run a few times only, such as an epoch's last batch and those of an evaluation. Each shape would
    have every algorithm of every layer timed, which pays where it runs thousands of times.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


# What is said where memory is wanting and no `torch.OutOfMemoryError` is raised.
_WANTING = (
    "DefaultCPUAllocator: can't allocate",
    "CUDA error: out of memory",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


def is_for_want_of_memory(error: BaseException) -> bool:
    """Whether it came of a device or a machine without memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in str(error) for words in _WANTING):
        return True
    # A CUDA graph that cannot be captured to its end says only that.
    return error.__context__ is not None and is_for_want_of_memory(error.__context__)


def precision_on(device: torch.device, asked: str) -> str:
    """bf16 or fp32: what was asked for; for auto, what the device has."""
    if asked != "auto":
        return asked
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"


def autocast_for(precision: str, device: torch.device) -> Autocast:
    """What a forward pass is wrapped in."""
    if precision == "fp32":
        return nullcontext
    return lambda: torch.autocast(device.type, dtype=torch.bfloat16)


def fits_on_device(data: DataSet, storage: str, device: torch.device) -> bool:
    """Whether the images stay on the device: half of what is free must be left for the network."""
    if storage != "auto":
        return storage == "resident"
    needed = sum(split.resident_bytes(data.geometry.stored) for split in (data.train, data.val, data.test) if split)
    if device.type == "cuda":
        free: float = torch.cuda.mem_get_info(device)[0]
    else:
        free = _available_memory()
    return needed < free / 2


def _available_memory() -> float:
    """What can be had without swapping: on Linux the kernel's own estimate, elsewhere taken as enough."""
    try:
        with open("/proc/meminfo") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return math.inf
