"""Find and read image files, predict their classes with any trained model, and choose the threshold of early exit.

transnet predict runs/t2 photos/ --confidence 0.9
"""

import glob
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from transnet.console import printable, say
from transnet.data.folder import images_below
from transnet.early_exit import calibrate, check_target, curve, run_heads
from transnet.errors import ConfigError, DataError, TransnetError
from transnet.model import TransNet
from transnet.ship.models import Model
from transnet.train.evaluate_runs import collect


@dataclass(frozen=True)
class Prediction:
    """A model's prediction for one image."""

    image: str  # its path; ``-`` for standard input
    label: str  # the class with the highest mean output
    probability: float  # of that class
    agreement: float  # fraction of the heads that ran and chose that class
    passes: int  # number of heads that ran, each one pass of the network
    heads: dict[str, str]  # the class that each of them chose, by transform; a second head of r0 is called ``r0#2``


def predict(
    model: Model, images: Iterable[tuple[str, Tensor]], *, confidence: float | None = None, batch_size: int = 64
) -> Iterator[Prediction]:
    """Predict images from `Model.prepare`, each with its name, batch by batch.

    ``confidence`` is the threshold for early exit, as for `anytime`. The model must have all its heads.
    """
    classes, names = model.about.classes, head_names(model.about.transforms)
    stream = iter(images)
    while batch := list(islice(stream, batch_size)):
        x = torch.stack([image for _, image in batch])
        if confidence is None:
            logits = model.heads(x)
            probabilities, votes = logits.mean(1).softmax(-1), logits.argmax(-1)
        else:
            net = net_with_heads(model)
            probabilities, votes = run_heads(net, x.to(next(net.parameters()).device), confidence)
        for (image, _), p, row in zip(batch, probabilities.cpu(), votes.tolist(), strict=True):
            top, ran = int(p.argmax()), [vote for vote in row if vote >= 0]
            heads = {name: classes[vote] for name, vote in zip(names, ran, strict=False)}
            yield Prediction(image, classes[top], float(p[top]), ran.count(top) / len(ran), len(ran), heads)


def head_names(transforms: Sequence[str]) -> list[str]:
    """Give each head its own name: the second head of r0 is called ``r0#2``."""
    counts = [transforms[: i + 1].count(name) for i, name in enumerate(transforms)]
    return [name if n == 1 else f"{name}#{n}" for name, n in zip(transforms, counts, strict=True)]


def net_with_heads(model: Model) -> TransNet:
    """Return the network, or raise a ConfigError if it cannot run its heads one by one."""
    if model.net is not None:
        return model.net
    if len(model.about.transforms) > 1:
        reason = "runs its heads at once; give the run, or one exported as safetensors with `head` all"
    else:
        reason = "has one head, so there is nothing to stop early; give the run itself"
    raise ConfigError(f"{model.source} {reason}", field="confidence")


def choose_threshold(
    path: str | Path, *, within: float = 0.1, passes: float | None = None, data: str | None = None,
    device: str = "auto", transform: str | Sequence[str] = (),
) -> float:  # fmt: skip
    """Choose the early-exit threshold of a run on its validation split, and print what it costs and reaches.

    It loses at most ``within`` percentage points of accuracy or, if that is given, needs at most ``passes`` per image.
    Without a validation split this raises, because a threshold chosen on the test set would flatter its results.
    """
    check_target(within, passes)
    try:
        found = collect(path, data=data, split="val", device=device, transform=transform)
    except TransnetError as error:
        problem = f"`{error.field}`: {error.message}" if error.field else error.message
        raise ConfigError(f"{problem}; or give a number, such as 0.9", field="confidence") from None
    logits, n = found.views[0], len(found.labels)
    chosen = calibrate(logits, found.labels, within=within, passes=passes)
    point = curve(logits, found.labels, torch.tensor([chosen], dtype=torch.float64))
    say(
        f"confidence {chosen:.4f}: {float(point.passes):.2f} of {point.heads} heads per image on average, and "
        f"{100 * (float(point.accuracy) - point.full):+.2f} points of accuracy compared with all heads, on {n:,} "
        "validation images"
    )
    if passes is None and 100 / n > within:
        say(
            f"warning: one of {n:,} validation images is {100 / n:.2f} points, so the threshold depends on chance; "
            "train with a larger validation split, or give a number"
        )
    return chosen


def find_images(paths: Iterable[str]) -> Iterator[str]:
    """Find the images that files, folders (with their subfolders) and globs refer to.

    ``-`` and paths that do not exist are kept, so that reading them reports the error.
    """
    for word in paths:
        path = Path(os.path.expanduser(word))
        if word == "-":
            yield word
        elif not os.path.exists(path) and glob.has_magic(word):
            matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
            # ** matches both a folder and the files in it
            yield from dict.fromkeys(image for match in matches for image in _inside(match)) or [word]
        else:
            yield from _inside(path)


def _inside(path: Path) -> list[str]:
    """The images in a folder, or the path itself if it is no folder or has no images."""
    names = images_below(path) if os.path.isdir(path) else []
    return [str(path / name) for name in names] or [str(path)]


def is_missing(name: str) -> bool:
    """Whether no file or folder has this name. One without permission counts as present: reading it reports why."""
    try:
        os.stat(name)
    except OSError as error:
        return name != "-" and isinstance(error, FileNotFoundError | NotADirectoryError)
    return False


def read_images(model: Model, names: Iterable[str], failed: list[str]) -> Iterator[tuple[str, Tensor]]:
    """Read and prepare images; report those that cannot be read and add them to ``failed``."""
    for name in names:
        try:
            if os.path.isdir(name):
                os.listdir(name)  # raises if the folder may not be read
                raise DataError("a folder without images in it")
            encoded = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
            image = model.prepare(encoded)
        except (OSError, ValueError) as error:
            failed.append(name)
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            say(f"transnet: {printable(name)}: {printable(reason)}")
        else:
            yield name, image
