"""A finished run as the network to ship: one head in the model's own place, its transform folded in, or all heads."""

import dataclasses
import math
from pathlib import Path

from torch import nn

from transnet.errors import ConfigError
from transnet.runs.description import Description
from transnet.runs.folder import Run, load


def network_of_run(path: str | Path, head: str = "r0") -> tuple[nn.Module, Description]:
    """The network to ship, in evaluation mode on the CPU, and what using it takes.

    Args:
        path: a finished run.
        head: the head to keep; any but r0 has its transform folded into the weights, which ties the network to the
            run's image size. ``best`` takes the head of the lowest validation loss, ``all`` keeps the whole TransNet.

    Raises:
        ConfigError: where the head is not there, or ``best`` is asked of a run without a validation split:
            choosing by the test set would make its figures worthless.
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
        if chosen == "r0":  # which nobody need have typed
            raise ConfigError(
                f"{run.path} has no identity head r0; give `head` {' or `head` '.join(known)} (the "
                "transform of a single head is folded into the weights)",
                field="head",
            )
        raise ConfigError(f"unknown {head!r}; known are {' '.join(known)}", field="head")
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
    # Of several heads of one transform only the first can be kept.
    first = {score.name: score for score in reversed(val.heads)}
    return min(first.values(), key=lambda score: math.inf if score.loss is None else score.loss).name
