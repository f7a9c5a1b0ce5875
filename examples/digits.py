"""scikit-learn's digits as tensors: small data for the examples beside this file."""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Training and test set: 8×8 grey images, ten classes."""
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16 - 0.3
    y = torch.tensor(data.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return TensorDataset(x[:1400], y[:1400]), TensorDataset(x[1400:], y[1400:])
