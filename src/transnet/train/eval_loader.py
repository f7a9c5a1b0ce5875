"""Splits as batches for measuring: each process its share, every image once."""

from collections.abc import Iterator

import torch
from torch import Tensor

from transnet.data import Split
from transnet.data.augment import View
from transnet.data.stream import stream
from transnet.train.distributed import World


class Looker:
    """Hands out a split's images, centre-cropped and normalised; those on the device stay there between calls."""

    def __init__(
        self, view: View, world: World, device: torch.device, *, resident: bool, workers: int, progress: bool
    ) -> None:
        self.view, self.world, self.device = view, world, device
        self.resident, self.workers, self.progress = resident, workers, progress
        self.batch = 1024 if device.type == "cuda" else 256
        self._kept: dict[str, Tensor] = {}

    def __call__(self, name: str, split: Split, images: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of (images, labels) of this process's share.

        Args:
            name: under which the images are kept on the device.
            split: the images.
            images: the split's stored images, where they are on the device already.
        """
        start, length = self.world.share(len(split))
        if not length:
            return
        labels = split.labels[start : start + length].to(self.device)
        if not self.resident:
            parts = torch.arange(start, start + length).split(self.batch)
            batches = stream(
                split, parts, self.view.geometry, crops=None, workers=self.workers, pin=self.device.type == "cuda"
            )  # fmt: skip
            for pixels, part in zip(batches, parts, strict=True):
                yield self.view.normalise(pixels.to(self.device)), labels[part - start]
            return
        if images is None:
            if name not in self._kept:
                stored = split.resident(self.view.geometry.stored, progress=self.progress)
                self._kept[name] = stored[start : start + length].to(self.device)
            images = self._kept[name]
        else:
            images = images[start : start + length]
        for pixels, y in zip(images.split(self.batch), labels.split(self.batch), strict=True):
            yield self.view.centre(pixels), y
