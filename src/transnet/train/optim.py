"""The optimizer, its learning rates, and what a captured step and a checkpoint need of it."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from transnet.runs.config import TrainConfig


def build_optimizer(net: nn.Module, config: TrainConfig, device: torch.device) -> torch.optim.Optimizer:
    """Build the optimizer of a run, with its state in place: any whose state consists of tensors will do.

    On a GPU its learning rate is a tensor, because a captured step cannot read a number from the host.
    """
    cuda = device.type == "cuda"
    optimizer = torch.optim.SGD(
        net.parameters(), lr=config.lr, momentum=config.momentum, nesterov=config.nesterov and config.momentum > 0,
        weight_decay=config.weight_decay, fused=cuda,
    )  # fmt: skip
    for group in optimizer.param_groups if cuda else ():
        group["lr"] = torch.tensor(group["lr"], device=device)
    materialize_state(optimizer)
    return optimizer


def learning_rates(config: TrainConfig, steps: int) -> Tensor:
    """The learning rate of every step of a run with ``steps`` steps per epoch; the step reads it on the device."""
    total = config.epochs * steps
    step = torch.arange(total, dtype=torch.float64)
    if config.schedule == "steps":
        milestones = torch.tensor([max(round(share * config.epochs), 1) * steps for share in config.milestone_shares])
        rates = config.lr * 0.1 ** (step[:, None] >= milestones).sum(1)
    else:
        peak = max(config.warmup * total, 1)
        rising = (step + 1) / peak
        falling = (1 + torch.cos(math.pi * (step + 1 - peak) / (total - peak + 1))) / 2
        rates = config.lr * torch.where(step + 1 < peak, rising, falling)
    return rates.float()


def materialize_state(optimizer: torch.optim.Optimizer) -> None:
    """Create the tensors of the state, all zero, before the first step: a CUDA graph and a checkpoint need them."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    with preserved(parameters):
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    for tensor in state_tensors(optimizer).values():
        tensor.zero_()


def state_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The tensors of the optimizer's state themselves, not copies, each under ``<number of the parameter>.<entry>``."""
    return {
        f"{number}.{entry}": value
        for number, entries in optimizer.state_dict()["state"].items()
        for entry, value in entries.items()
        if isinstance(value, Tensor)
    }


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: Tensor) -> None:
    """Set the learning rate of the next step. On a GPU this copies on the device, without waiting for it."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].copy_(rate)
        else:
            group["lr"] = rate.item()


@contextmanager
def preserved(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Restore the values of tensors, in place, when the block ends."""
    values = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in values:
                tensor.copy_(value)
