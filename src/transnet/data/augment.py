"""Random crops, flips and mixing: drawn on the CPU for a whole epoch, carried out on the device inside the step.

An epoch's randomness is a `Plan`, a function of (seed, epoch) alone: nothing of it needs to be saved to resume a
run, and it is the same on every device and for every number of processes; only whom mixing pairs with whom depends
on that number, since each process mixes its own share of a batch. Data order and augmentation come from
generators of their own, so that two runs can share one and differ in the other.

Carrying it out is index arithmetic: crop, flip and padding decide which stored pixel each pixel of the batch comes
from, so that gathering, cropping, flipping and normalising compile to one kernel.
"""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

MIXUP, CUTMIX = 1, 2


def seed_for(*parts: int | str) -> int:
    """A seed for one purpose out of a run's seed: ``seed_for(seed, "order", epoch)``."""
    digest = hashlib.sha256("/".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") & (2**63 - 1)


@dataclass(frozen=True)
class Plan:
    """One epoch: which image comes when, and what happens to it.

    Attributes:
        order: (N,) indices of the images, batch after batch.
        crop: (N, 2) in [0, 1): where the crop lies between its first and last possible row and column.
        flip: (N,) whether to mirror left-right.
        mix: (batches, 6): kind (0 none, 1 mixup, 2 CutMix), the weight of the image itself, and for CutMix the
            box as fractions: top, left, height, width.
    """

    order: Tensor
    crop: Tensor
    flip: Tensor
    mix: Tensor


def plan(n: int, *, seed: int, epoch: int, batches: int, flip: bool, mixup: float = 0.0, cutmix: float = 0.0) -> Plan:
    """Draw an epoch of ``n`` images in ``batches`` batches.

    Args:
        n: number of images.
        seed: the run's.
        epoch: from 0.
        batches: steps of the epoch.
        flip: whether images are mirrored, with probability 0.5.
        mixup: α of its Beta distribution, 0 for none.
        cutmix: likewise. With both, each batch takes one of them at random.
    """
    order = torch.Generator().manual_seed(seed_for(seed, "order", epoch))
    random = torch.Generator().manual_seed(seed_for(seed, "augment", epoch))
    return Plan(
        order=torch.randperm(n, generator=order),
        crop=torch.rand(n, 2, generator=random),
        flip=(torch.rand(n, generator=random) < 0.5) & flip,
        mix=_mixing(batches, mixup, cutmix, seed_for(seed, "mix", epoch)),
    )


def _mixing(batches: int, mixup: float, cutmix: float, seed: int) -> Tensor:
    import numpy as np

    table = torch.zeros(batches, 6)
    table[:, 1] = 1
    if not mixup and not cutmix:
        return table
    random = np.random.default_rng(seed)
    for row in table:
        kind = (MIXUP if random.random() < 0.5 else CUTMIX) if mixup and cutmix else (MIXUP if mixup else CUTMIX)
        alpha = mixup if kind == MIXUP else cutmix
        own = random.beta(alpha, alpha)
        row[0], row[1] = kind, own
        if kind == CUTMIX:
            side = (1 - own) ** 0.5  # the box takes 1 − own of the area, wholly inside the image
            row[2:] = torch.tensor([random.random() * (1 - side), random.random() * (1 - side), side, side])
    return table


@dataclass(frozen=True)
class View:
    """How stored images become the network's input: the data set's geometry and statistics.

    Attributes:
        size: side of what the network sees.
        stored: side of what is stored.
        pad: pixels of mean colour added on each side before a random crop.
        scale: (C,) and shift: (C,): normalised = stored · scale − shift.
    """

    size: int
    stored: int
    pad: int
    scale: Tensor
    shift: Tensor

    @classmethod
    def of(
        cls, *, size: int, stored: int, pad: int, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
    ) -> "View":
        """From channel statistics in 0…1."""
        m = torch.tensor(mean, dtype=torch.float32, device=device)
        s = torch.tensor(std, dtype=torch.float32, device=device)
        return cls(size, stored, pad, 1 / (255 * s), m / s)

    def normalise(self, pixels: Tensor) -> Tensor:
        """uint8 (B, H, W, C) → float (B, C, H, W), channels-last in memory."""
        return (pixels * self.scale - self.shift).permute(0, 3, 1, 2)

    def train(self, images: Tensor, index: Tensor, crop: Tensor, flip: Tensor) -> Tensor:
        """Gather ``images[index]``, crop, flip and normalise them."""
        span = torch.arange(self.size, device=images.device)
        first = (crop * (self.stored + 2 * self.pad - self.size + 1)).floor().long() - self.pad
        rows = first[:, :1] + span
        columns = first[:, 1:] + torch.where(flip[:, None], self.size - 1 - span, span)
        last = self.stored - 1
        picked = images[index[:, None, None], rows.clamp(0, last)[:, :, None], columns.clamp(0, last)[:, None, :]]
        x = self.normalise(picked)
        if not self.pad:
            return x
        inside = ((rows >= 0) & (rows <= last))[:, :, None] & ((columns >= 0) & (columns <= last))[:, None, :]
        return x * inside[:, None]  # the mean colour is zero after normalising

    def centre(self, pixels: Tensor) -> Tensor:
        """For evaluation: the centre crop of stored images (B, S, S, C), normalised."""
        first = (pixels.shape[1] - self.size) // 2
        return self.normalise(pixels[:, first : first + self.size, first : first + self.size])


def mix(x: Tensor, y: Tensor, settings: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Mixup or CutMix with the batch's neighbours: (B, C, H, W) and class indices → images and probabilities.

    Args:
        x: normalised images.
        y: class indices.
        settings: one row of ``Plan.mix``, on the device.
        classes: number of classes.
    """
    kind, own, top, left, height, width = settings.unbind()
    h, w = x.shape[-2:]
    rows, columns = torch.arange(h, device=x.device), torch.arange(w, device=x.device)
    box_rows = (rows >= (top * h).round()) & (rows < ((top + height) * h).round())
    box_columns = (columns >= (left * w).round()) & (columns < ((left + width) * w).round())
    outside = ~(box_rows[:, None] & box_columns[None, :])
    weight = torch.where(kind == CUTMIX, outside.to(x.dtype), own.to(x.dtype))
    share = weight.mean()
    one_hot = torch.nn.functional.one_hot(y, classes).to(x.dtype)
    return weight * x + (1 - weight) * x.roll(1, 0), share * one_hot + (1 - share) * one_hot.roll(1, 0)
