"""Random crops, flips, rotations and mixing: drawn on the CPU for a whole epoch, applied on the device inside the step.

An epoch's randomness is a `Plan`, which depends only on (seed, epoch), so resuming a run needs no saved random state.
The device applies it by index arithmetic, so that everything from gathering to normalising compiles to one kernel.
With several processes, each mixes its own share of a batch.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from transnet import d4
from transnet.data.pixels import Geometry

MIXUP, CUTMIX = 1, 2


def seed_for(*parts: int | str) -> int:
    """Derive a seed for one purpose from a run's seed: ``seed_for(seed, "order", epoch)``."""
    digest = hashlib.sha256("/".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") & (2**63 - 1)


@dataclass(frozen=True)
class Plan:
    """One epoch: the order of the images and how each is augmented."""

    order: Tensor  # (N,) indices of the images, batch after batch
    crop: Tensor  # (N, 2) in [0, 1): the position of the crop between its first and last possible row and column
    flip: Tensor  # (N,) whether to flip left-right
    rotate: Tensor  # (N,) which transform to apply after the flip, as its index in `d4.NAMES`
    # (batches, 6): kind (0 none, 1 mixup, 2 CutMix), the weight of the image itself, and for CutMix the box as
    # fractions: top, left, height, width.
    mix: Tensor


def plan_epoch(
    n: int, *, seed: int, epoch: int, batches: int, flip: bool, rotate: Sequence[str] = ("r0",),
    mixup: float = 0.0, cutmix: float = 0.0, mix_share: float = 1.0,
) -> Plan:  # fmt: skip
    """Draw an epoch of ``n`` images for a run's seed; ``flip`` flips half of them, and each gets one of ``rotate``.

    ``mixup`` and ``cutmix`` are the α of the Beta distributions, 0 for none; with both, each batch uses one of them.
    ``mix_share`` is the share of the batches that are mixed.
    """
    order = torch.Generator().manual_seed(seed_for(seed, "order", epoch))
    random = torch.Generator().manual_seed(seed_for(seed, "augment", epoch))
    rotation = torch.Generator().manual_seed(seed_for(seed, "rotate", epoch))
    elements = torch.tensor([d4.NAMES.index(name) for name in rotate])
    return Plan(
        order=torch.randperm(n, generator=order),
        crop=torch.rand(n, 2, generator=random),
        flip=(torch.rand(n, generator=random) < 0.5) & flip,
        rotate=elements[torch.randint(len(elements), (n,), generator=rotation)],
        mix=_mixing(batches, mixup, cutmix, mix_share, seed_for(seed, "mix", epoch)),
    )


def _mixing(batches: int, mixup: float, cutmix: float, share: float, seed: int) -> Tensor:
    table = torch.zeros(batches, 6)
    table[:, 1] = 1
    if not mixup and not cutmix:
        return table
    random = np.random.default_rng(seed)
    for row in table:
        if share < 1 and random.random() >= share:
            continue
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
    """Turns stored images into a network's input, by the dataset's geometry and statistics."""

    geometry: Geometry
    scale: Tensor  # (C,): normalised = stored · scale − shift
    shift: Tensor
    channels_last: bool = True  # the memory format of the network's input

    @classmethod
    def create(
        cls, geometry: Geometry, *, mean: Sequence[float], std: Sequence[float], device: torch.device | None = None
    ) -> "View":
        """From channel statistics in 0…1."""
        m, s = (torch.tensor(values, dtype=torch.float32, device=device) for values in (mean, std))
        return cls(geometry, 1 / (255 * s), m / s)

    def normalise(self, pixels: Tensor) -> Tensor:
        """uint8 (B, H, W, C) → float (B, C, H, W)."""
        # Row by row, because a CPU is slow at an inner loop over three channels.
        width = pixels.shape[2]
        rows = pixels.flatten(2) * self.scale.repeat(width) - self.shift.repeat(width)
        x = rows.unflatten(2, (width, -1)).permute(0, 3, 1, 2)
        return x if self.channels_last else x.contiguous()

    def train(self, images: Tensor, index: Tensor, crop: Tensor, flip: Tensor, rotate: Tensor | None = None) -> Tensor:
        """Gather ``images[index]``, crop, flip, rotate and normalise them; the arguments are parts of a `Plan`."""
        (height, width), stored = self.geometry.size, self.geometry.stored
        top, left = self.geometry.corners(crop)
        rows, columns = (torch.arange(side, device=images.device) for side in (height, width))
        reverse = flip[:, None]
        if rotate is not None:
            # Every element of D4 reverses rows, columns, both or none, and may then swap the two.
            swap, half, mirror = (rotate[:, None] >> bit & 1 == 1 for bit in range(3))
            rows = torch.where(half ^ (mirror & swap), height - 1 - rows, rows)
            reverse = reverse ^ half ^ (mirror | swap)
        rows, columns = top[:, None] + rows, left[:, None] + torch.where(reverse, width - 1 - columns, columns)
        row, column = rows.clamp(0, stored[0] - 1)[:, :, None], columns.clamp(0, stored[1] - 1)[:, None]
        inside = (rows[:, :, None] == row) & (columns[:, None] == column)
        if rotate is not None and height == width:
            row, column, inside = (torch.where(swap[:, None], each.mT, each) for each in (row, column, inside))
        at = ((index * stored[0])[:, None, None] + row) * stored[1] + column
        x = self.normalise(images.flatten(0, 2).index_select(0, at.flatten()).unflatten(0, at.shape))
        return x * inside[:, None] if self.geometry.pad else x  # the mean colour is zero after normalising

    def centre(self, images: Tensor) -> Tensor:
        """For evaluation: the centre crops of stored images (B, H, W, C), normalised."""
        return self.normalise(self.geometry.centre(images))


def mix(x: Tensor, y: Tensor, settings: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Mix images (B, C, H, W) with their neighbours in the batch, by a row of ``Plan.mix``.

    Their targets ``y``, labels or probabilities, become mixed probabilities.
    """
    kind, own, top, left, height, width = settings.unbind()
    h, w = x.shape[-2:]
    rows, columns = torch.arange(h, device=x.device), torch.arange(w, device=x.device)
    box_rows = (rows >= (top * h).round()) & (rows < ((top + height) * h).round())
    box_columns = (columns >= (left * w).round()) & (columns < ((left + width) * w).round())
    outside = ~(box_rows[:, None] & box_columns[None, :])
    weight = torch.where(kind == CUTMIX, outside.to(x.dtype), own.to(x.dtype))
    share = weight.mean()
    target = (y if y.is_floating_point() else torch.nn.functional.one_hot(y, classes)).to(x.dtype)
    return weight * x + (1 - weight) * x.roll(1, 0), share * target + (1 - share) * target.roll(1, 0)
