"""Models to wrap, and batches for them."""

import torch
from torch import nn

from transnet import backbones

K = 5


def small(**kw):
    return backbones.create("resnet8-small", num_classes=K, in_channels=3, **kw)


class Bare(nn.Module):
    """A hand-written model without batch norm; its head follows another linear layer."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.hidden = nn.Linear(8, 16)
        self.out = nn.Linear(16, K)

    def forward(self, x):
        return self.out(self.hidden(self.conv(x).relu().mean((2, 3))).relu())


def batch(n=4, side=8):
    return torch.randn(n, 3, side, side), torch.randint(K, (n,))
