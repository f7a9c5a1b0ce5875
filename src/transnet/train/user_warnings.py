"""Warnings about settings that are allowed but may not be what the user meant."""

from collections.abc import Sequence

import torch

from transnet import d4
from transnet.console import counted, printable
from transnet.data import DataSet
from transnet.runs.config import TrainConfig


def setup_warnings(config: TrainConfig, data: DataSet, *, flip: bool) -> list[str]:
    """Return warnings about settings that do not suit the data or each other. ``flip``: training flips images."""
    found = transform_warnings(config.names, flip=flip, rotate=config.rotations)
    unused = [entry for entry in config.transform if entry.partition("=")[0] not in config.names]
    found += [f"note: `transform` {entry} is not among `transforms` {config.transforms}" for entry in unused]
    if config.batch_size > len(data.train):
        found.append(f"note: `batch_size` {config.batch_size} is more than all training images: an epoch is one step")
    if config.pretrained and config.lr == TrainConfig.for_data(config.data, config.out, recipe=config.recipe).lr:
        found.append(f"note: `lr` {config.lr:g} is the recipe's; pretrained weights usually need less, such as 0.01")
    side = _made_for(config.model or "")
    if side and data.image_size <= side / 2:
        sees = f"{data.image_size}×{data.image_size}; `image_size` {side} enlarges them, which takes longer"
        found.append(f"note: {config.model} was made for images of {side}×{side} and sees {sees}")
    counts = torch.bincount(data.train.labels, minlength=len(data.classes))
    if config.train_fraction < 1 and (n := int((counts == 1).sum())):
        found.append(f"note: `train_fraction` leaves a single image in {n} of {len(counts)} classes")
    found += imbalance_notes(data.classes, counts.tolist())
    missing = len(data.classes) - len(torch.unique(data.val.labels)) if data.val is not None else 0
    if missing:
        found.append(f"note: classes without an image in the validation split: {missing} of {len(data.classes)}")
    return found


def transform_warnings(names: tuple[str, ...], *, flip: bool, rotate: tuple[str, ...] = ()) -> list[str]:
    """Return warnings about the heads' transforms. ``flip``: training flips images, ``rotate``: and rotates them."""
    found = []
    if "r0" not in names:
        folded = "with another transform folded into its weights (`transnet prune` with `head`)"
        found.append(f"warning: there is no identity head r0, so pruning to one pass is only possible {folded}")
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    found += [f'note: {name} has several heads for one task, as in the paper\'s "Architecture only"' for name in twice]
    again = [name for name in dict.fromkeys(names) if name in rotate and name != "r0"]
    found += [
        f"note: {name} is in `rotate` and a head's transform, so other heads train on its images too" for name in again
    ]
    # A flip of the data turns some transforms into each other: r0~m0, r1~m3, r2~m2, r3~m1.
    known = [t for t in names if flip and t in d4.NAMES]
    pairs = {tuple(sorted((t, d4.compose(t, "m0")))) for t in known if d4.compose(t, "m0") in names}
    both = [f"{a} and {b}" for a, b in sorted(pairs)]
    return found + [f"warning: images are flipped in training, so {pair} are one task for two heads" for pair in both]


def imbalance_notes(classes: Sequence[str], n_train: Sequence[int]) -> list[str]:
    """Return a note if a class has more than three times the training images of another."""
    few, many = min(n_train), max(n_train)
    if many <= 3 * few:
        return []
    smallest, largest = (printable(classes[list(n_train).index(n)]) for n in (few, many))
    return [
        f"note: the training set is imbalanced: {counted(few, 'image')} of {smallest} and {counted(many, 'image')} of "
        f"{largest}; judge the network by its balanced accuracy and the recall of each class"
    ]


def _made_for(model: str) -> int | None:
    """The side of the images that a library's model was made for; None for ours, which take any."""
    library, _, name = model.partition(":")
    if library != "timm":
        return 224 if library == "torchvision" else None
    import timm

    config = timm.get_pretrained_cfg(name)
    return int(config.input_size[1]) if config is not None else None
