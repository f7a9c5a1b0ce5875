"""Run a network over a split and count: every head, the pruned classifier, the full model, with and without flip.

Base, pruned and full are measured by one protocol: eval mode, untouched images, centre crop where the data set has
one. The pruned classifier is the identity head, at one pass of the untransformed image.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transnet import d4
from transnet.model import TransNet

Batches = Iterable[tuple[Tensor, Tensor]]  # normalised images and class indices


@torch.no_grad()
def count(
    net: TransNet, batches: Batches, *, flip: bool, autocast: Callable[[], AbstractContextManager[Any]]
) -> Tensor:
    """Sums over a split: (views, m + 1, 3) of correct, cross-entropy and number; the last row is the full model.

    Views are the plain images and, with ``flip``, the mean of the outputs on x and flip(x). Float64, so that the sums
    of many processes add up to those of one.
    """
    device = next(net.parameters()).device
    m = len(net.transforms)
    sums = torch.zeros(1 + flip, m + 1, 3, dtype=torch.float64, device=device)
    training = net.training
    net.eval()
    try:
        for x, y in batches:
            with autocast():
                logits = net(x).float()
                views = [logits]
                if flip:
                    views.append((logits + net(d4.apply("m0", x)).float()) / 2)
            for i, view in enumerate(views):
                sums[i] += _count(torch.cat([view, view.mean(1, keepdim=True)], 1), y)
    finally:
        net.train(training)
    return sums


def _count(outputs: Tensor, y: Tensor) -> Tensor:
    batch, rows, classes = outputs.shape
    targets = y[:, None].expand(batch, rows)
    loss = F.cross_entropy(outputs.reshape(-1, classes), targets.reshape(-1), reduction="none")
    correct = (outputs.argmax(-1) == targets).double().sum(0)
    number = torch.full_like(correct, batch)
    return torch.stack([correct, loss.view(batch, rows).double().sum(0), number], -1)


def scores(sums: Tensor, transforms: tuple[str, ...], *, passes: int = 1) -> dict[str, Any]:
    """One view's sums as ``result.json`` has them: ``pruned``, ``full`` and ``heads``.

    Args:
        sums: (m + 1, 3), a row of what `count` returns.
        transforms: the heads' names. ``pruned`` is null where r0 is not among them.
        passes: of the network per head and image: 1, or 2 with flip.
    """

    def entry(row: Tensor, heads: int) -> dict[str, Any]:
        correct, loss, n = row.tolist()
        return {"accuracy": correct / n, "loss": loss / n, "n": int(n), "passes": heads * passes}

    heads = [{"name": name, **entry(row, 1)} for name, row in zip(transforms, sums, strict=False)]
    pruned = entry(sums[transforms.index("r0")], 1) if "r0" in transforms else None
    return {"pruned": pruned, "full": entry(sums[-1], len(transforms)), "heads": heads}
