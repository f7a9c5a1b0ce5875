"""Turn a finished run into the network to ship: one head in the model's own place, or all heads."""

import dataclasses
import math
from pathlib import Path

from torch import nn

from transnet.errors import ConfigError
from transnet.runs.description import Description
from transnet.runs.folder import Run, load


def network_of_run(path: str | Path, head: str = "r0") -> tuple[nn.Module, Description]:
    """Return the network to ship, in evaluation mode on the CPU, and its description.

    Args:
        path: a finished run.
        head: the head to keep. The transform of any head but r0 is folded into the weights, which ties the network to
            the run's image size. ``best`` keeps the head with the lowest validation loss, ``all`` the whole TransNet.

    Raises:
        ConfigError: if there is no such head, or if ``best`` is given for a run without a validation split: a head
            chosen on the test set would flatter its results.
    """
    run = Run(path)
    about = Description.of_run(run.settings(), str(run.config))
    chosen = _best(run) if head == "best" else head
    if chosen == "all":
        return load(path), about
    if chosen not in about.transforms:
        known = ["all", *dict.fromkeys(about.transforms)]
        if run.finished and run.result().val:
            known.insert(0, "best")
        problem = f"{run.path} has no identity head r0" if chosen == "r0" else f"unknown {head!r}"  # r0 is the default
        raise ConfigError(f"{problem}; known are {' '.join(known)}", field="head")
    network = load(path).prune(chosen, image_size=about.image_size)
    return network.eval(), dataclasses.replace(
        about, kind="pruned", transforms=(chosen,), heads="separate", bn="joint", fold=chosen != "r0"
    )


def _best(run: Run) -> str:
    val = run.result().val
    if not val:
        raise ConfigError(
            f"{run.path} has no validation split to choose the best by; train with `val_fraction` 0.1, or name a head",
            field="head",
        )
    first = {score.name: score for score in reversed(val.heads)}  # only the first head of a transform can be kept
    return min(first.values(), key=lambda score: math.inf if score.loss is None else score.loss).name
