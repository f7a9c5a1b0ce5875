"""Batches of a split for evaluation: each process gets its share, every image once."""

from collections.abc import Iterator

import torch
from torch import Tensor

from transnet.data import Split
from transnet.data.augment import View
from transnet.data.stream import stream
from transnet.train.distributed import World


class EvalLoader:
    """Give a split's images, centre-cropped and normalised.

    Args:
        view: geometry and channel statistics.
        world: this process's place.
        device: where the batches are needed.
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
        labels = split.labels[start : start + length].to(self.device)
        if not self.resident:
            parts = torch.arange(start, start + length).split(self.batch)
            geometry, pin = self.view.geometry, self.device.type == "cuda"
            batches = stream(split, parts, geometry, crops=None, workers=self.workers, pin=pin)
            for pixels, part in zip(batches, parts, strict=True):
                yield self.view.normalise(pixels.to(self.device)), labels[part - start]
            return
        if images is not None:
            images = images[start : start + length]
        else:
            if name not in self._images:
                stored = split.resident(self.view.geometry.stored, progress=self.progress)
                self._images[name] = stored[start : start + length].to(self.device)
            images = self._images[name]
        for pixels, y in zip(images.split(self.batch), labels.split(self.batch), strict=True):
            yield self.view.centre(pixels), y
