"""What a user should know of settings that are allowed, but may not be what was meant."""

import torch

from transnet import d4
from transnet.data import DataSet
from transnet.runs.config import TrainConfig
from transnet.train.class_report import imbalance_notes

_USUAL_SIDE = 224  # of the images that torchvision's models are made for


def of_heads(names: tuple[str, ...], *, flip: bool) -> list[str]:
    """Of which transforms there are."""
    said = []
    if "r0" not in names:
        said.append(
            "warning: there is no identity head r0, so nothing can be pruned to one pass of the image as it is: "
            "another head needs its transform folded into the weights (transnet prune --head), or the image "
            "transformed first"
        )
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    said += [f'note: {name} has several heads for one task, as in the paper\'s "Architecture only"' for name in twice]
    pairs = natural_pairs(names) if flip else []
    return said + [f"warning: images are flipped in training, so {pair} are one task for two heads" for pair in pairs]


def natural_pairs(names: tuple[str, ...]) -> list[str]:
    """Transforms that a left-right flip in the data turns into each other: r0~m0, r1~m3, r2~m2, r3~m1."""
    pairs = {tuple(sorted((t, d4.compose(t, "m0")))) for t in names if d4.compose(t, "m0") in names}
    return [f"{a} and {b}" for a, b in sorted(pairs)]


def of_settings(config: TrainConfig, data: DataSet) -> list[str]:
    """Of how they fit the data, and each other."""
    said = []
    if config.batch_size > len(data.train):
        said.append(f"note: --batch-size {config.batch_size} is more than all training images: an epoch is one step")
    if config.pretrained and config.lr == TrainConfig.for_data(config.data, config.out, recipe=config.recipe).lr:
        said.append(
            f"note: --lr {config.lr:g} is the recipe's, for training from nothing; from pretrained weights less is "
            "usual, such as --lr 0.01"
        )
    side = _made_for(config.model or "")
    if side and data.image_size <= side / 2:
        said.append(
            f"note: {config.model} was made for images of {side}×{side} and sees {data.image_size}×{data.image_size}; "
            f"--image-size {side} enlarges them, which takes longer"
        )
    counts = torch.bincount(data.train.labels, minlength=len(data.classes)).tolist()
    said += imbalance_notes([{"class": name, "n_train": n} for name, n in zip(data.classes, counts, strict=True)])
    if data.val is not None:
        missing = len(data.classes) - len(torch.unique(data.val.labels))
        if missing:
            said.append(f"note: classes without an image in the validation split: {missing} of {len(data.classes)}")
    return said


def _made_for(model: str) -> int | None:
    """The side of the images that a library's model was made for; None for ours, which take any."""
    library, _, name = model.partition(":")
    if library == "torchvision":
        return _USUAL_SIDE
    if library != "timm":
        return None
    import timm

    config = timm.get_pretrained_cfg(name)
    return int(config.input_size[1]) if config is not None else None
