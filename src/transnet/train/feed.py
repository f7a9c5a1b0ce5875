"""Batches of images: for the training step from a `Feed`, for evaluation from `eval_batches`."""

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace

import torch
from torch import Tensor

from transnet.data import Split
from transnet.data.augment import Plan, View
from transnet.data.dataset import stream
from transnet.train.distributed import World


class Feed:
    """The training step's batches, from all images on the device, or from a buffer that is filled from a stream."""

    def __init__(
        self, images: Tensor | None, labels: Tensor, view: View, batch: int, world: World, device: torch.device, *,
        mixes: bool = False, rotates: bool = False,
    ) -> None:  # fmt: skip
        n = len(labels)
        self.images = images  # uint8 (N, H, W, C) on the device; None to stream them
        self.batch = batch  # images per step, over all processes
        self.view, self.world, self.mixes, self.rotates = view, world, mixes, rotates
        self.labels = labels.to(device)
        self.steps = -(-n // batch)
        self._sizes = [min(batch, n - step * batch) for step in range(self.steps)]  # over all processes
        self._shares = [world.share(size) for size in self._sizes]
        self.order = torch.zeros(n, dtype=torch.int64, device=device)
        self.crop = torch.zeros(n, 2, device=device)
        self.flip = torch.zeros(n, dtype=torch.bool, device=device)
        self.rotate = torch.zeros(n, dtype=torch.int64, device=device)
        self.mix = torch.zeros(self.steps, 6, device=device)
        # The step within the epoch. It has one dimension, because indexing with a scalar tensor reads it on the host.
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        # Streamed images arrive cropped, unless the crop needs padding, which is added here.
        shape = (self.size(0), *view.geometry.streamed.size, len(view.scale))
        self.pixels = torch.zeros(shape, dtype=torch.uint8, device=device) if images is None else None
        self._streamed = replace(view, geometry=replace(view.geometry, stored=view.geometry.streamed.size))

    def start(self, plan: Plan, step: int = 0) -> None:
        """Begin an epoch at one of its steps."""
        for name in ("order", "crop", "flip", "rotate", "mix"):
            getattr(self, name).copy_(getattr(plan, name))
        self.step.fill_(step)

    def steps_from(self, first_step: int, split: Split, plan: Plan, *, workers: int) -> Generator[int]:
        """Yield the epoch's steps from ``first_step`` on, each as soon as its images are there. Close it to stop."""
        steps = range(first_step, self.steps)
        if self.pixels is None:
            yield from steps
            return
        parts = [self.positions(step) for step in steps]
        decoded = stream(
            split, [plan.order[part] for part in parts], self.view.geometry.streamed,
            crops=torch.cat([plan.crop[part] for part in parts]), workers=workers, pin=self.pixels.is_cuda,
        )  # fmt: skip
        with closing(decoded):
            for step in steps:
                pixels = next(decoded)
                self.pixels[: len(pixels)].copy_(pixels, non_blocking=True)
                yield step

    def size(self, step: int) -> int:
        """Images in this process's share of a batch: at least 1, because an empty share gets one image of weight 0."""
        return max(self._shares[step][1], 1)

    def weight(self, step: int) -> float:
        """Weight of this process's mean loss in the mean over all processes."""
        return self._shares[step][1] * self.world.size / self._sizes[step]

    def offset(self, step: int) -> int:
        """Where this process's share of a batch begins."""
        return self._shares[step][0]

    def positions(self, step: int) -> slice:
        """This process's share of a batch, as positions in the epoch's order."""
        start = min(step * self.batch + self.offset(step), len(self.order) - 1)
        return slice(start, start + self.size(step))

    def mean(self, values: Tensor) -> Tensor:
        """Average the means of all steps' batches, (steps, …), over the epoch's images: a smaller batch counts less."""
        sizes = torch.tensor(self._sizes, device=values.device)
        return (values * (sizes[:, None] / len(self.order))).sum(0)

    def indices(self, size: int, offset: int) -> Tensor:
        """The indices of the current step's images in the training set."""
        return self.order[self._current(size, offset)]

    def _current(self, size: int, offset: int) -> Tensor:
        positions = self.step * self.batch + offset + torch.arange(size, device=self.order.device)
        return positions.clamp(max=len(self.order) - 1)

    def fetch(self, size: int, offset: int) -> tuple[Tensor, Tensor]:
        """The current step's images, augmented and normalised, and their labels."""
        positions = self._current(size, offset)
        indices, crop, flip = self.order[positions], self.crop[positions], self.flip[positions]
        rotate = self.rotate[positions] if self.rotates else None
        y = self.labels[indices]
        if self.images is not None:
            return self.view.train(self.images, indices, crop, flip, rotate), y
        assert self.pixels is not None
        return self._streamed.train(self.pixels, torch.arange(size, device=indices.device), crop, flip, rotate), y


def eval_batches(
    split: Split, images: Tensor | None, view: View, world: World, workers: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """A split's images, centre-cropped and normalised, with labels: each process gets its share, every image once.

    ``images`` are the stored images on the device of ``view``; if None, ``workers`` processes decode them.
    """
    device = view.scale.device
    cuda = device.type == "cuda"
    # More than this does not make a CPU faster, and takes more memory than training.
    size = 1024 if cuda else max(min(2**20 // (view.geometry.size[0] * view.geometry.size[1]), 256), 8)
    start, length = world.share(len(split))
    if not length:
        return
    labels = split.labels[start : start + length].to(device).split(size)
    if images is not None:
        for pixels, y in zip(images[start : start + length].split(size), labels, strict=True):
            yield view.centre(pixels), y
        return
    parts = torch.arange(start, start + length).split(size)
    decoded = stream(split, parts, view.geometry, crops=None, workers=workers, pin=cuda)
    for pixels, y in zip(decoded, labels, strict=True):
        yield view.normalise(pixels.to(device)), y
