"""Run a network over a split, and score every head, the pruned classifier and the full model.

The baseline, the pruned classifier and the full model are measured by one protocol: evaluation mode, images without
augmentation, the centre crop if the dataset has one. The pruned classifier is the identity head, at one pass of the
untransformed image.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from transnet import d4, metrics
from transnet.metrics import score_sums
from transnet.model import TransNet
from transnet.runs.records import ClassRecall, HeadScore, Score, Scores, Uncertainty

Batches = Iterable[tuple[Tensor, Tensor]]  # normalised images and class indices


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Set evaluation mode within the block, then restore the mode of every layer (a frozen one keeps its own)."""
    modes = {module: module.training for module in net.modules()}
    net.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@torch.no_grad()
def _logits(
    net: TransNet, batches: Batches, *, flip: bool, autocast: Callable[[], AbstractContextManager[Any]]
) -> Iterator[tuple[list[Tensor], Tensor]]:
    """For each batch the logits (B, m, K), with ``flip`` also those of flip TTA, and the labels."""
    for x, y in batches:
        with autocast():
            logits = net.logits(x).float()
            views = [logits]
            if flip:
                views.append((logits + net.logits(d4.apply("m0", x)).float()) / 2)
        yield views, y


def count(
    net: TransNet, batches: Batches, classes: int, *, flip: bool, autocast: Callable[[], AbstractContextManager[Any]]
) -> Tensor:
    """Sums over a split for every head and, in the last row, the full model: (views, m + 1, 1 + 2 · classes).

    The first view is the images as they are. With ``flip`` the second is flip TTA, the mean of the logits of x and
    flip(x). For the entries of a row see `transnet.metrics.score_sums`. They are float64, so that the sums of several
    processes add up to those of one.
    """
    device = next(net.parameters()).device
    m = len(net.transforms)
    sums = torch.zeros(1 + flip, m + 1, 1 + 2 * classes, dtype=torch.float64, device=device)
    with evaluating(net):
        for views, y in _logits(net, batches, flip=flip, autocast=autocast):
            for i, logits in enumerate(views):
                sums[i] += score_sums(torch.cat([logits, logits.mean(1, keepdim=True)], 1), y)
    return sums


def outputs(
    net: TransNet, batches: Batches, *, flip: bool, autocast: Callable[[], AbstractContextManager[Any]]
) -> list[Tensor]:
    """The logits of a split, (N, m, K) on the CPU; with ``flip`` also those of flip TTA."""
    views: list[list[Tensor]] = [[], []] if flip else [[]]
    with evaluating(net):
        for found, _ in _logits(net, batches, flip=flip, autocast=autocast):
            for view, logits in zip(views, found, strict=True):
                view.append(logits.cpu())
    return [torch.cat(view) for view in views]


def scores(sums: Tensor, transforms: tuple[str, ...], *, passes: int = 1) -> Scores:
    """The scores of the pruned classifier, the full model and every head.

    Args:
        sums: (m + 1, 1 + 2K), one view of what `count` returns.
        transforms: the heads' names. Without r0 there is no pruned classifier.
        passes: passes per head and image: 1, or 2 with flip TTA.
    """
    m = len(transforms)
    each = [_score(row, passes) for row in sums[:m]]
    return Scores(
        pruned=each[transforms.index("r0")] if "r0" in transforms else None,
        full=_score(sums[-1], m * passes),
        heads=tuple(HeadScore(**vars(score), name=name) for name, score in zip(transforms, each, strict=True)),
    )


def _score(row: Tensor, passes: int) -> Score:
    loss, correct, n = row[0].item(), *row[1:].view(2, -1)
    number = int(n.sum())
    recall = (correct / n)[n > 0]
    return Score(
        accuracy=correct.sum().item() / number,
        loss=loss / number,
        n=number,
        passes=passes,
        balanced_accuracy=recall.mean().item(),
        present_classes=len(recall),
        zero_recall_classes=int((recall == 0).sum()),
    )


def with_classes(
    found: Scores, sums: Tensor, transforms: tuple[str, ...], classes: Sequence[str], n_train: Sequence[int]
) -> Scores:
    """Add every class's recall to the pruned classifier, or to the full model if there is no r0.

    Args:
        found: the scores.
        sums: what they were computed from.
        transforms: the heads' names.
        classes: the names of the classes.
        n_train: the number of training images of each class.
    """
    correct, n = sums[transforms.index("r0") if found.pruned else -1, 1:].view(2, -1).tolist()
    recalls = tuple(
        ClassRecall(name=name, n=int(k), recall=right / k if k else None, n_train=trained)
        for name, trained, right, k in zip(classes, n_train, correct, n, strict=True)
    )
    if found.pruned:
        return replace(found, pruned=replace(found.pruned, classes=recalls))
    return replace(found, full=replace(found.full, classes=recalls))


@dataclass(frozen=True, kw_only=True)
class ClassScore(ClassRecall):
    """One class of a split, and the class that it is most often confused with.

    Attributes:
        taken_for: the class that is most often predicted instead; None if every prediction is correct.
        mistakes: how often it is.
    """

    taken_for: str | None
    mistakes: int


def class_scores(
    logits: Tensor, y: Tensor, classes: Sequence[str], n_train: Sequence[int] | None = None
) -> tuple[ClassScore, ...]:
    """A classifier's recall of each class, and the class that it confuses it with most often.

    Args:
        logits: (N, K).
        y: the labels.
        classes: their names.
        n_train: the number of training images of each class, if it is known.
    """
    predictions = [Counter[int]() for _ in classes]
    for label, choice in zip(y.tolist(), logits.argmax(-1).tolist(), strict=True):
        predictions[label][choice] += 1
    found = []
    for label, (name, choices) in enumerate(zip(classes, predictions, strict=True)):
        n = choices.total()
        right = choices.pop(label, 0)
        other, mistakes = min(choices.items(), key=lambda item: (-item[1], item[0]), default=(None, 0))
        found.append(
            ClassScore(
                name=name, n=n, recall=right / n if n else None, n_train=n_train[label] if n_train else None,
                taken_for=None if other is None else classes[other], mistakes=mistakes,
            )
        )  # fmt: skip
    return tuple(found)


def scores_of_logits(logits: Tensor, y: Tensor, transforms: tuple[str, ...], *, passes: int = 1) -> Scores:
    """`scores` from logits (N, m, K), with the `Uncertainty` of every classifier."""
    found = scores(score_sums(torch.cat([logits, logits.mean(1, keepdim=True)], 1), y), transforms, passes=passes)
    of_head = [uncertainty(logits[:, i : i + 1], y) for i in range(len(transforms))]
    return Scores(
        pruned=replace(found.pruned, uncertainty=of_head[transforms.index("r0")]) if found.pruned else None,
        full=replace(found.full, uncertainty=uncertainty(logits, y)),
        heads=tuple(replace(head, uncertainty=each) for head, each in zip(found.heads, of_head, strict=True)),
    )


def ensemble_scores(
    networks: Sequence[Tensor], y: Tensor, transforms: Sequence[tuple[str, ...]], *, passes: int = 1
) -> Scores:
    """Several networks as one classifier: the mean logits of their pruned classifiers, and of their full models.

    Args:
        networks: the logits (N, m, K) of each.
        y: the labels.
        transforms: the heads' names of each network.
        passes: passes per head and image: 1, or 2 with flip TTA.
    """
    # A network counts once, whatever its number of heads.
    full = ensemble_score([logits.mean(1) for logits in networks], y, passes=passes * sum(map(len, transforms)))
    pruned = None
    if all("r0" in names for names in transforms):
        heads = [logits[:, names.index("r0")] for logits, names in zip(networks, transforms, strict=True)]
        pruned = ensemble_score(heads, y, passes=passes * len(heads))
    return Scores(pruned=pruned, full=full, heads=())


def ensemble_score(members: Sequence[Tensor], y: Tensor, *, passes: int) -> Score:
    """Score the mean of several classifiers' logits, each (N, K), with its `Uncertainty`."""
    stacked = torch.stack(list(members), 1)
    score = _score(score_sums(stacked.mean(1, keepdim=True), y)[0], passes)
    return replace(score, uncertainty=uncertainty(stacked, y))


def uncertainty(members: Tensor, y: Tensor) -> Uncertainty:
    """Calibration and disagreement of a classifier whose output is the mean of its members' logits, (N, M, K)."""
    return Uncertainty(**metrics.uncertainty(members, y))
