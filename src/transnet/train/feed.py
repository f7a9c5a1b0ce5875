"""Batches of images: for the training step from a `Feed`, for evaluation from an `EvalLoader`."""

from collections.abc import Iterator

import torch
from torch import Tensor

from transnet.data import Split
from transnet.data.augment import Plan, View
from transnet.data.stream import stream
from transnet.train.distributed import World


class Feed:
    """Give the step its batches: from all images on the device, or from a buffer that is filled from a stream.

    Args:
        images: uint8 (N, H, W, C) on the device; None if batches are copied into ``pixels``.
        labels: int64 (N,).
        view: geometry and channel statistics.
        batch: images per step, over all processes. Each process fetches its share.
        mixes: whether batches are mixed (mixup, CutMix).
    """

    def __init__(
        self, images: Tensor | None, labels: Tensor, view: View, batch: int, world: World, device: torch.device, *,
        mixes: bool = False,
    ) -> None:  # fmt: skip
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

    def positions(self, step: int) -> slice:
        """This process's share of a batch, as positions in the epoch's order."""
        start = min(step * self.batch + self.offset(step), len(self.order) - 1)
        return slice(start, start + self.size(step))

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the epoch's images of means over each step's batch, (steps, …)."""
        sizes = [self._batch_size(step) for step in range(self.steps)]
        return (values * (torch.tensor(sizes, device=values.device)[:, None] / len(self.order))).sum(0)

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


class EvalLoader:
    """Give a split's images, centre-cropped and normalised: each process gets its share, every image once.

    Args:
        view: geometry and channel statistics.
        resident: keep the images on the device between calls, or decode them in each call.
        workers: processes that decode streamed images.
        progress: show a progress bar while images are decoded.
    """

    def __init__(
        self, view: View, world: World, device: torch.device, *, resident: bool, workers: int, progress: bool
    ) -> None:
        self.view, self.world, self.device = view, world, device
        self.resident, self.workers, self.progress = resident, workers, progress
        self.batch = 1024 if device.type == "cuda" else 256
        self._images: dict[str, Tensor] = {}

    def batches(self, name: str, split: Split, images: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of (images, labels) of this process's share.

        Args:
            name: the name under which the split's images are kept on the device.
            split: the images.
            images: the split's stored images, if they are on the device already.
        """
        start, length = self.world.share(len(split))
        if not length:
            return
        share = slice(start, start + length)
        labels = split.labels[share].to(self.device).split(self.batch)
        if not self.resident:
            parts = torch.arange(start, start + length).split(self.batch)
            pin = self.device.type == "cuda"
            decoded = stream(split, parts, self.view.geometry, crops=None, workers=self.workers, pin=pin)
            for pixels, y in zip(decoded, labels, strict=True):
                yield self.view.normalise(pixels.to(self.device)), y
            return
        if images is not None:
            images = images[share]
        else:
            if name not in self._images:
                stored = split.resident(self.view.geometry.stored, progress=self.progress)
                self._images[name] = stored[share].to(self.device)
            images = self._images[name]
        for pixels, y in zip(images.split(self.batch), labels, strict=True):
            yield self.view.centre(pixels), y
