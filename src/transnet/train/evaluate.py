"""Run a network over a split and count: every head, the pruned classifier, the full model, with and without flip.

Base, pruned and full are measured by one protocol: eval mode, untouched images, centre crop where the data set has
one. The pruned classifier is the identity head, at one pass of the untransformed image.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transnet import d4
from transnet.metrics import uncertainty
from transnet.model import TransNet
from transnet.runs.records import ClassRecall, HeadScore, Score, Scores, encode

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
    net: TransNet, batches: Batches, classes: int, *, flip: bool, autocast: Callable[[], AbstractContextManager[Any]]
) -> Tensor:
    """Sums over a split, for every head and, in the last row, the full model: (views, m + 1, 1 + 2 · classes).

    A row holds the sum of the cross-entropy, then the number of correct predictions for each class, then the number of
    images of each class. Views are the plain images and, with ``flip``, the mean of the outputs on x and flip(x).
    Float64, so that the sums of many processes add up to those of one.
    """
    device = next(net.parameters()).device
    m = len(net.transforms)
    sums = torch.zeros(1 + flip, m + 1, 1 + 2 * classes, dtype=torch.float64, device=device)
    with evaluating(net):
        for x, y in batches:
            with autocast():
                logits = net.logits(x).float()
                views = [logits]
                if flip:
                    views.append((logits + net.logits(d4.apply("m0", x)).float()) / 2)
            for i, view in enumerate(views):
                sums[i] += _count(torch.cat([view, view.mean(1, keepdim=True)], 1), y, classes)
    return sums


def _count(outputs: Tensor, y: Tensor, classes: int) -> Tensor:
    batch, rows, logits = outputs.shape
    targets = y[:, None].expand(batch, rows)
    loss = F.cross_entropy(outputs.reshape(-1, logits), targets.reshape(-1), reduction="none")
    right = (outputs.argmax(-1) == targets).double()
    correct = right.new_zeros(rows, classes).index_add_(1, y, right.T)
    number = torch.bincount(y, minlength=classes).double().expand(rows, classes)
    return torch.cat([loss.view(batch, rows).double().sum(0)[:, None], correct, number], 1)


def scores(sums: Tensor, transforms: tuple[str, ...], *, passes: int = 1) -> Scores:
    """One view's sums as ``result.json`` has them: ``pruned``, ``full`` and ``heads``.

    The balanced accuracy is the mean recall over the ``present_classes``, those that have images in the split.
    ``zero_recall_classes`` is the number of present classes without a single correct prediction.

    Args:
        sums: (m + 1, 1 + 2K), one view of what `count` returns.
        transforms: the heads' names. ``pruned`` is null where r0 is not among them.
        passes: of the network per head and image: 1, or 2 with flip.
    """

    def entry(row: Tensor, heads: int) -> Score:
        loss, correct, n = row[0].item(), *row[1:].view(2, -1)
        number = int(n.sum())
        recall = (correct / n)[n > 0]
        return Score(
            accuracy=correct.sum().item() / number,
            loss=loss / number,
            n=number,
            passes=heads * passes,
            balanced_accuracy=recall.mean().item(),
            present_classes=len(recall),
            zero_recall_classes=int((recall == 0).sum()),
        )

    heads = tuple(HeadScore(**vars(entry(row, 1)), name=name) for name, row in zip(transforms, sums, strict=False))
    pruned = entry(sums[transforms.index("r0")], 1) if "r0" in transforms else None
    return Scores(pruned, entry(sums[-1], len(transforms)), heads)


@dataclass(frozen=True)
class Measured:
    """The part of a `Result` that is measured by running the trained network."""

    test: Scores
    test_flip: Scores | None
    val: Scores | None
    val_flip: Scores | None
    train: Score | None
    generalization: float | None


def result_of(
    transforms: tuple[str, ...], test: Tensor, val: Tensor | None, train: Tensor | None, *,
    classes: Sequence[str], n_train: Sequence[int],
) -> Measured:  # fmt: skip
    """What ``result.json`` says of a network's accuracy and loss.

    In ``test`` and ``val``, ``pruned`` (``full`` if there is no identity head) also has ``classes``: for each class its
    ``n_train``, ``n`` and ``recall``, which is null if ``n`` is 0.

    Args:
        transforms: the heads' names.
        test: what `count` returned for the test set, with or without flip.
        val: likewise, for the validation split.
        train: one view of the identity head alone on the training images, for the generalisation score: test loss
            over train loss, plain cross-entropy, no augmentation, no flip.
        classes: the names of the classes.
        n_train: the number of training images of each class.
    """

    def with_classes(sums: Tensor) -> Scores:
        view = scores(sums, transforms)
        row = transforms.index("r0") if "r0" in transforms else -1
        correct, n = sums[row, 1:].view(2, -1).tolist()
        recalls = tuple(
            ClassRecall(name, int(k), right / k if k else None, trained)
            for name, trained, right, k in zip(classes, n_train, correct, n, strict=True)
        )
        if view.pruned:
            return replace(view, pruned=replace(view.pruned, classes=recalls))
        return replace(view, full=replace(view.full, classes=recalls))

    plain = with_classes(test[0])
    trained = scores(train, ("r0",)).pruned if train is not None else None
    ratio = None
    if trained and trained.loss and plain.pruned and plain.pruned.loss is not None:
        ratio = plain.pruned.loss / trained.loss
    return Measured(
        test=plain,
        test_flip=scores(test[1], transforms, passes=2) if len(test) > 1 else None,
        val=with_classes(val[0]) if val is not None else None,
        val_flip=scores(val[1], transforms, passes=2) if val is not None and len(val) > 1 else None,
        train=trained,
        generalization=ratio,
    )


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
    found = encode(
        scores(
            _count(torch.cat([logits, logits.mean(1, keepdim=True)], 1), y, logits.shape[-1]), transforms, passes=passes
        )
    )
    for i, head in enumerate(found["heads"]):
        head.update(uncertainty(logits[:, i : i + 1], y))
    if found["pruned"]:
        found["pruned"] |= uncertainty(logits[:, transforms.index("r0")][:, None], y)
    found["full"] |= uncertainty(logits, y)
    return found


def class_scores(
    logits: Tensor, y: Tensor, classes: Sequence[str], n_train: Sequence[int] | None = None
) -> list[dict[str, Any]]:
    """A classifier's recall of each class, and the class that it confuses it with most often.

    Args:
        logits: (N, K).
        y: the labels.
        classes: their names.
        n_train: the number of training images of each class, if it is known.

    Returns:
        For each class, in the order of the labels: its name as ``class``, ``n_train`` (if given), ``n``, ``recall``,
        also called ``accuracy`` (both null if ``n`` is 0), ``taken_for`` (the class most often predicted instead, null
        if every prediction is correct) and ``mistakes`` (how often that one is).
    """
    predictions = [Counter[int]() for _ in classes]
    for label, choice in zip(y.tolist(), logits.argmax(-1).tolist(), strict=True):
        predictions[label][choice] += 1
    found = []
    for label, (name, choices) in enumerate(zip(classes, predictions, strict=True)):
        n = choices.total()
        right = choices.pop(label, 0)
        recall = right / n if n else None
        other, mistakes = min(choices.items(), key=lambda item: (-item[1], item[0]), default=(None, 0))
        found.append(
            {
                "class": name, **({"n_train": n_train[label]} if n_train else {}), "n": n, "accuracy": recall,
                "recall": recall, "taken_for": None if other is None else classes[other], "mistakes": mistakes,
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
    mean = together.mean(1, keepdim=True)
    entry = scores(_count(mean, y, mean.shape[-1]), ("r0",)).full
    return {**encode(entry), "passes": passes, **uncertainty(together, y)}
