"""The network's own earlier predictions in the targets (Kim et al., 2021, progressive self-knowledge distillation)."""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from transnet.errors import ConfigError
from transnet.train.device import free_memory
from transnet.train.distributed import World
from transnet.train.feed import Feed


def check_memory(n: int, classes: int, device: torch.device) -> None:
    """Raise if a `PastTargets` does not fit."""
    size = 2 * n * (classes + 1)
    if size > free_memory(device):
        needed = f"{n:,} images of {classes:,} classes need a table of {size / 2**30:.1f} GiB"
        raise ConfigError(f"{needed}, more memory than is free; leave it out", field="past_targets")


class PastTargets:
    """What a network with one output predicted for each training image when it last trained on it.

    The target is (1 − a) · label + a · prediction. The weight a rises from 0 to ``weight`` over the run, and is 0
    for an image that was not seen yet.
    """

    def __init__(self, n: int, classes: int, weight: float, steps: int, device: torch.device) -> None:
        self.predictions = torch.zeros(n, classes, dtype=torch.float16, device=device)
        self.seen = torch.zeros(n, 1, dtype=torch.float16, device=device)
        self._rise = weight / steps  # of a, in each of the run's steps

    def targets(self, indices: Tensor, y: Tensor, done: Tensor) -> Tensor:
        """Return the targets (B, K) of images with labels ``y``, after ``done`` steps of the run."""
        a = self._rise * done * self.seen[indices].float()
        return (1 - a) * one_hot(y, self.predictions.shape[1]) + a * self.predictions[indices].float()

    @torch.no_grad()
    def remember(self, indices: Tensor, logits: Tensor, mixed: Tensor) -> None:
        """Keep the predictions for a batch, unless its images were ``mixed`` (a boolean tensor)."""
        new = torch.where(mixed, self.predictions[indices], logits.softmax(-1).to(self.predictions.dtype))
        self.predictions.index_copy_(0, indices, new)
        self.seen.index_copy_(0, indices, torch.where(mixed, self.seen[indices], 1.0))

    def gather(self, feed: Feed, world: World) -> None:
        """After an epoch, or a part of one, give every process the predictions of all."""
        if world.size == 1:
            return
        others = torch.ones(len(self.seen), 1, dtype=torch.bool, device=self.seen.device)
        for step in range(feed.steps):
            if feed.weight(step):
                others[feed.order[feed.positions(step)]] = False
        for table in (self.predictions, self.seen):
            table.copy_(world.sum(table.masked_fill(others, 0)))  # exact, because all but one are zero
