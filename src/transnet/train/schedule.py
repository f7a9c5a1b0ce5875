"""The learning rate of every step, known before the first: the step reads it from a table on the device."""

import math

import torch
from torch import Tensor

from transnet.runs.config import TrainConfig


def learning_rates(config: TrainConfig, steps: int) -> Tensor:
    """The learning rate of every step of a run with ``steps`` steps per epoch."""
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
