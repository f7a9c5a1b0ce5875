"""Run a network over a split and count: every head, the pruned classifier, the full model, with and without flip.

Base, pruned and full are measured by one protocol: eval mode, untouched images, centre crop where the data set has
one. The pruned classifier is the identity head, at one pass of the untransformed image.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transnet import d4
from transnet.metrics import uncertainty
from transnet.model import TransNet

Batches = Iterable[tuple[Tensor, Tensor]]  # normalised images and class indices


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Evaluation mode while the block lasts; then every layer is in the mode that it was in, frozen ones too."""
    before = {module: module.training for module in net.modules()}
    net.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


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
    with evaluating(net):
        for x, y in batches:
            with autocast():
                logits = net.logits(x).float()
                views = [logits]
                if flip:
                    views.append((logits + net.logits(d4.apply("m0", x)).float()) / 2)
            for i, view in enumerate(views):
                sums[i] += _count(torch.cat([view, view.mean(1, keepdim=True)], 1), y)
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


def result_of(transforms: tuple[str, ...], test: Tensor, val: Tensor | None, train: Tensor | None) -> dict[str, Any]:
    """What ``result.json`` says of a network's accuracy and loss.

    Args:
        transforms: the heads' names.
        test: what `count` returned for the test set, with or without flip.
        val: likewise, for the validation split.
        train: one view of the identity head alone on the training images, for the generalisation score: test loss
            over train loss, plain cross-entropy, no augmentation, no flip.
    """
    plain = scores(test[0], transforms)
    trained = scores(train, ("r0",))["pruned"] if train is not None else None
    ratio = plain["pruned"]["loss"] / trained["loss"] if trained and trained["loss"] > 0 else None
    return {
        "schema": 1,
        "test": plain,
        "test_flip": scores(test[1], transforms, passes=2) if len(test) > 1 else None,
        "val": scores(val[0], transforms) if val is not None else None,
        "val_flip": scores(val[1], transforms, passes=2) if val is not None and len(val) > 1 else None,
        "train": trained,
        "generalization": ratio,
    }


@torch.no_grad()
def outputs(
    net: TransNet, batches: Batches, *, flip: bool, autocast: Callable[[], AbstractContextManager[Any]]
) -> list[Tensor]:
    """The logits themselves, (N, m, K) on the CPU, plain and, with ``flip``, the mean with those of flip(x)."""
    views: list[list[Tensor]] = [[], []] if flip else [[]]
    with evaluating(net):
        for x, _ in batches:
            with autocast():
                logits = net.logits(x).float()
                views[0].append(logits.cpu())
                if flip:
                    views[1].append(((logits + net.logits(d4.apply("m0", x)).float()) / 2).cpu())
    return [torch.cat(view) for view in views]


def scores_of(logits: Tensor, y: Tensor, transforms: tuple[str, ...], *, passes: int = 1) -> dict[str, Any]:
    """`scores` from logits (N, m, K), with calibration and the disagreement of the heads."""
    found = scores(_count(torch.cat([logits, logits.mean(1, keepdim=True)], 1), y), transforms, passes=passes)
    for i, head in enumerate(found["heads"]):
        head.update(uncertainty(logits[:, i : i + 1], y))
    if found["pruned"]:
        found["pruned"] |= uncertainty(logits[:, transforms.index("r0")][:, None], y)
    found["full"] |= uncertainty(logits, y)
    return found


def class_scores(logits: Tensor, y: Tensor, classes: Sequence[str]) -> list[dict[str, Any]]:
    """A classifier's accuracy on each class, and what it takes the class for where it is wrong.

    Args:
        logits: (N, K).
        y: the labels.
        classes: their names.

    Returns:
        For each class that has images, in the order of the labels: its name as ``class``, ``n``, ``accuracy``,
        ``taken_for`` (the class most often chosen instead, null where all answers are right) and ``mistakes`` (how
        often that one is).
    """
    said = [Counter[int]() for _ in classes]
    for label, choice in zip(y.tolist(), logits.argmax(-1).tolist(), strict=True):
        said[label][choice] += 1
    found = []
    for label, (name, choices) in enumerate(zip(classes, said, strict=True)):
        if n := choices.total():
            right = choices.pop(label, 0)
            other, mistakes = min(choices.items(), key=lambda item: (-item[1], item[0]), default=(None, 0))
            found.append(
                {
                    "class": name, "n": n, "accuracy": right / n,
                    "taken_for": None if other is None else classes[other], "mistakes": mistakes,
                }
            )  # fmt: skip
    return found


def ensemble_scores(
    runs: list[tuple[Tensor, ...]], y: Tensor, transforms: list[tuple[str, ...]]
) -> dict[str, dict[str, Any] | None]:
    """Several networks as one: the mean of their pruned classifiers' outputs, and that of their full models'.

    Args:
        runs: for each network what `outputs` returned.
        y: the labels.
        transforms: for each network its heads' names.
    """
    result: dict[str, dict[str, Any] | None] = {"plain": None, "flip": None}
    for i, view in enumerate(("plain", "flip")[: min(len(run) for run in runs)]):
        # A network counts once, whatever its number of heads.
        full = ensemble_entry([run[i].mean(1) for run in runs], y, passes=(i + 1) * sum(map(len, transforms)))
        heads = [run[i][:, names.index("r0")] for run, names in zip(runs, transforms, strict=True) if "r0" in names]
        whole = len(heads) == len(runs)
        pruned = ensemble_entry(heads, y, passes=(i + 1) * len(runs)) if whole else None
        result[view] = {"pruned": pruned, "full": full, "heads": []}
    return result


def ensemble_entry(members: list[Tensor], y: Tensor, *, passes: int) -> dict[str, Any]:
    """Accuracy, loss, calibration and disagreement of the mean of several classifiers' logits, each (N, K)."""
    together = torch.stack(members, 1)
    entry: dict[str, Any] = scores(_count(together.mean(1, keepdim=True), y), ("r0",))["full"]
    return {**entry, "passes": passes, **uncertainty(together, y)}
