"""Run a network over a split, and score every head, the pruned classifier and the full model.

The protocol is the same for the baseline: evaluation mode, images without augmentation, the centre crop if the dataset
has one. The pruned classifier is the identity head, at one pass of the untransformed image.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from transnet import d4, metrics
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


@torch.inference_mode()
def _logits_per_view(net: TransNet, batches: Batches, *, flip: bool) -> Iterator[tuple[list[Tensor], Tensor]]:
    """For each batch, yield the labels and the logits (B, m, K) of each view.

    The first view is the images as they are. The second, with ``flip``, is flip TTA: the mean logits of x and flip(x).
    """
    for x, y in batches:
        views = [net.logits(x).float()]
        if flip:
            views.append((views[0] + net.logits(d4.apply("m0", x)).float()) / 2)
        yield views, y


def score_totals(net: TransNet, batches: Batches, classes: int, *, flip: bool) -> Tensor:
    """Sum `metrics.score_sums` over all batches: (views, m + 1, 1 + 2 · classes). The last row is the full model's."""
    shape = 1 + flip, len(net.transforms) + 1, 1 + 2 * classes
    device = next(net.parameters()).device
    place = "cpu" if device.type == "mps" else device  # Apple's GPUs have no float64
    sums = torch.zeros(shape, dtype=torch.float64, device=place)
    with evaluating(net):
        for views, y in _logits_per_view(net, batches, flip=flip):
            for i, logits in enumerate(views):
                rows = torch.cat([logits, logits.mean(1, keepdim=True)], 1)
                sums[i] += metrics.score_sums(rows.to(place), y.to(place))
    return sums


def logits_of(net: TransNet, batches: Batches, *, flip: bool) -> list[Tensor]:
    """The logits of a split, (N, m, K) on the CPU; with ``flip`` also those of flip TTA."""
    with evaluating(net):
        found = [[logits.cpu() for logits in views] for views, _ in _logits_per_view(net, batches, flip=flip)]
    return [torch.cat(view) for view in zip(*found, strict=True)]


def scores(sums: Tensor, transforms: tuple[str, ...], *, passes: int = 1) -> Scores:
    """The scores from one view of `score_totals`, with ``passes`` per head and image (2 with flip TTA)."""
    *heads, full = (_score(row, passes) for row in sums)
    return _scores(heads, replace(full, passes=len(heads) * passes), transforms)


def scores_with_classes(
    sums: Tensor, transforms: tuple[str, ...], classes: Sequence[str], n_train: Sequence[int]
) -> Scores:
    """`scores`, with every class's recall for the pruned classifier, or for the full model if there is no r0."""
    found = scores(sums, transforms)
    correct, images = sums[transforms.index("r0") if found.pruned else -1, 1:].view(2, -1).tolist()
    recalls = tuple(
        ClassRecall(name=name, n=int(n), recall=right / n if n else None, n_train=trained)
        for name, trained, right, n in zip(classes, n_train, correct, images, strict=True)
    )
    if found.pruned:
        return replace(found, pruned=replace(found.pruned, classes=recalls))
    return replace(found, full=replace(found.full, classes=recalls))


def scores_of_logits(logits: Tensor, y: Tensor, transforms: tuple[str, ...], *, passes: int = 1) -> Scores:
    """`scores` from logits (N, m, K), with the `Uncertainty` of every classifier."""
    members = logits.unbind(1)
    heads = [ensemble_score([member], y, passes=passes) for member in members]
    return _scores(heads, ensemble_score(members, y, passes=len(members) * passes), transforms)


def ensemble_scores(
    networks: Sequence[Tensor], y: Tensor, transforms: Sequence[tuple[str, ...]], *, passes: int = 1
) -> Scores:
    """Several networks as one classifier: the mean logits of their pruned classifiers, and of their full models.

    ``networks`` are the logits (N, m, K) of each. Every network has the same weight, whatever its number of heads.
    """
    full = ensemble_score([logits.mean(1) for logits in networks], y, passes=passes * sum(map(len, transforms)))
    pruned = None
    if all("r0" in names for names in transforms):
        heads = [logits[:, names.index("r0")] for logits, names in zip(networks, transforms, strict=True)]
        pruned = ensemble_score(heads, y, passes=passes * len(heads))
    return Scores(pruned=pruned, full=full, heads=())


def ensemble_score(members: Sequence[Tensor], y: Tensor, *, passes: int) -> Score:
    """Score the mean of several classifiers' logits, each (N, K), with its `Uncertainty`."""
    stacked = torch.stack(list(members), 1)
    uncertainty = Uncertainty(**metrics.uncertainty(stacked, y))
    return _score(metrics.score_sums(stacked.mean(1, keepdim=True), y)[0], passes, uncertainty)


def _scores(heads: Sequence[Score], full: Score, transforms: tuple[str, ...]) -> Scores:
    return Scores(
        pruned=heads[transforms.index("r0")] if "r0" in transforms else None,
        full=full,
        heads=tuple(HeadScore(**vars(score), name=name) for name, score in zip(transforms, heads, strict=True)),
    )


def _score(row: Tensor, passes: int, uncertainty: Uncertainty | None = None) -> Score:
    loss, correct, n = row[0].item(), *row[1:].view(2, -1)
    number = int(n.sum())
    recall = (correct / n)[n > 0]
    return Score(
        accuracy=correct.sum().item() / number, loss=loss / number, n=number, passes=passes,
        balanced_accuracy=recall.mean().item(), present_classes=len(recall),
        zero_recall_classes=int((recall == 0).sum()), uncertainty=uncertainty,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ClassScore(ClassRecall):
    """One class of a split, and the class that is most often predicted instead of it."""

    taken_for: str | None  # None if every prediction is correct
    mistakes: int  # how often that is


def class_scores(
    logits: Tensor, y: Tensor, classes: Sequence[str], n_train: Sequence[int] | None = None
) -> tuple[ClassScore, ...]:
    """The `ClassScore` of each class from a classifier's logits (N, K); ``n_train``: images in training."""
    k, found = len(classes), []
    confusion = torch.bincount(y * k + logits.argmax(-1), minlength=k * k).view(k, k).tolist()
    for label, row in enumerate(confusion):
        n, recall = sum(row), row[label] / sum(row) if sum(row) else None
        row[label] = 0
        mistakes = max(row)
        taken_for = classes[row.index(mistakes)] if mistakes else None
        trained = n_train[label] if n_train else None
        found.append(ClassScore(classes[label], n, recall, trained, taken_for=taken_for, mistakes=mistakes))
    return tuple(found)
