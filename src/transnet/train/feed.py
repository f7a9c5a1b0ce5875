"""The training images as the step reads them."""

import torch
from torch import Tensor

from transnet.data.augment import Plan, View
from transnet.train.distributed import World


class Feed:
    """Give the step its batches: from all images on the device, or from a buffer that is filled from a stream.

    Args:
        images: uint8 (N, H, W, C) on the device; None if batches are copied into ``pixels``.
        labels: int64 (N,).
        view: geometry and channel statistics.
        batch: images per step, over all processes.
        world: this process's place; it fetches its share of each batch.
        device: where the step runs.
        mixes: whether batches are mixed (mixup, CutMix).
    """

    def __init__(
        self,
        images: Tensor | None,
        labels: Tensor,
        view: View,
        batch: int,
        world: World,
        device: torch.device,
        *,
        mixes: bool = False,
    ) -> None:
        n = len(labels)
        self.images, self.view, self.batch, self.world = images, view, batch, world
        self.labels = labels.to(device)
        self.steps = -(-n // batch)
        self.order = torch.zeros(n, dtype=torch.int64, device=device)
        self.crop = torch.zeros(n, 2, device=device)
        self.flip = torch.zeros(n, dtype=torch.bool, device=device)
        self.mix = torch.zeros(self.steps, 6, device=device)
        self.mixes = mixes
        # The step within the epoch. It has one dimension, because indexing with a scalar tensor reads it on the host.
        self.index = torch.zeros(1, dtype=torch.int64, device=device)
        self.pixels: Tensor | None = None
        if images is None:
            # Streamed images arrive cropped, unless the crop needs padding, which is added here.
            shape = (self.size(0), *view.geometry.streamed.size, len(view.scale))
            self.pixels = torch.zeros(shape, dtype=torch.uint8, device=device)

    def start(self, plan: Plan, step: int = 0) -> None:
        """Begin an epoch's plan at one of its steps."""
        self.order.copy_(plan.order)
        self.crop.copy_(plan.crop)
        self.flip.copy_(plan.flip)
        self.mix.copy_(plan.mix)
        self.index.fill_(step)

    def size(self, step: int) -> int:
        """Images in this process's share of a batch: at least 1, of weight 0 if the share is empty."""
        return max(self._share(step)[1], 1)

    def weight(self, step: int) -> float:
        """Weight of this process's mean loss in the mean over all processes."""
        return self._share(step)[1] * self.world.size / self._batch_size(step)

    def offset(self, step: int) -> int:
        """Where this process's share of a batch begins."""
        return self._share(step)[0]

    @property
    def shares(self) -> Tensor:
        """Fraction of the epoch's images in each step, (steps, 1), to average over the epoch. The last may be less."""
        sizes = [self._batch_size(step) for step in range(self.steps)]
        return torch.tensor(sizes, device=self.order.device)[:, None] / len(self.order)

    def positions(self, step: int) -> slice:
        """This process's share of a step, as positions in the epoch's order; for streaming."""
        start = min(step * self.batch + self.offset(step), len(self.order) - 1)
        return slice(start, start + self.size(step))

    def fetch(self, size: int, offset: int) -> tuple[Tensor, Tensor]:
        """The current step's images, augmented and normalised, and their labels."""
        positions = self.index * self.batch + offset + torch.arange(size, device=self.order.device)
        positions = positions.clamp(max=len(self.order) - 1)
        image, flip = self.order[positions], self.flip[positions]
        if self.images is not None:
            x = self.view.train(self.images, image, self.crop[positions], flip)
        elif self.view.geometry.pad:
            assert self.pixels is not None
            x = self.view.train(self.pixels, torch.arange(size, device=image.device), self.crop[positions], flip)
        else:
            assert self.pixels is not None
            x = self.view.normalise(self.pixels[:size])
            x = torch.where(flip[:, None, None, None], x.flip(-1), x)
        return x, self.labels[image]

    def _batch_size(self, step: int) -> int:
        return min(self.batch, len(self.order) - step * self.batch)

    def _share(self, step: int) -> tuple[int, int]:
        return self.world.share(self._batch_size(step))
