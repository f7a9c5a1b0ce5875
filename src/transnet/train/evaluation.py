"""Measure finished runs again, alone and as an ensemble."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from transnet.data import DataError, DataSet, Split, open_data
from transnet.data.augment import View
from transnet.data.decode import Pixels
from transnet.measure.evaluate import ensemble_scores, outputs, scores_of
from transnet.train.config import ConfigError
from transnet.train.device import find_device
from transnet.train.distributed import World
from transnet.train.look import Looker
from transnet.train.run import Run, load


def evaluate_runs(
    paths: Sequence[str], *, data: str | None = None, split: Literal["test", "val"] = "test", device: str = "auto"
) -> dict[str, dict[str, Any]]:
    """Every run's scores, and their ensemble's where there are several: ``{run: {"plain": …, "flip": … | None}}``.

    Args:
        paths: folders of finished runs. Those of one ensemble must have the same test images.
        data: another data set with the same classes.
        split: ``val`` for a run with a validation split.
        device: where to compute.
    """
    if not paths:
        raise ConfigError("evaluate: no run given; give the folder of a finished run")
    where = find_device(device, World())
    results: dict[str, dict[str, Any]] = {}
    collected: list[tuple[Tensor, ...]] = []
    seen: set[str] = set()
    labels = torch.empty(0)
    for path in paths:
        content = Run(path).read_config()
        net = load(path).to(where)
        part, look = _part(path, content, data, split, where)
        seen.add(part.fingerprint)
        flip = bool(content["data"]["flip"])
        views = outputs(net, look(split, part), flip=flip, autocast=nullcontext)
        labels = part.labels
        results[str(path)] = {
            "plain": scores_of(views[0], labels, net.transforms),
            "flip": scores_of(views[1], labels, net.transforms, passes=2) if flip else None,
        }
        collected.append(tuple(views))
    if len(paths) > 1:
        if len(seen) > 1:
            raise ConfigError("evaluate: these runs were tested on different images, so they form no ensemble")
        results["ensemble"] = ensemble_scores(collected, labels, [load(path).transforms for path in paths])
    return results


def split_outputs(path: str, split: Literal["test", "val"], *, device: str = "auto") -> tuple[Tensor, Tensor]:
    """A run's logits (N, m, K) on one of its splits, and the labels: for choices such as a threshold, on ``val``."""
    where = find_device(device, World())
    part, look = _part(path, Run(path).read_config(), None, split, where)
    return outputs(load(path).to(where), look(split, part), flip=False, autocast=nullcontext)[0], part.labels


def some_images(path: str, n: int) -> list[Pixels]:
    """Up to ``n`` images of a run's test split, from all over it, as they were decoded: to try a model on.

    Raises:
        DataError: where the data is not there any more.
    """
    test = _open(path, Run(path).read_config(), None).test
    return [test.decode(int(i)) for i in torch.linspace(0, len(test) - 1, min(n, len(test))).long()]


def _part(
    path: str, content: dict[str, Any], data: str | None, split: Literal["test", "val"], device: torch.device
) -> tuple[Split, Looker]:
    opened = _open(path, content, data)
    part = opened.val if split == "val" else opened.test
    if part is None:
        raise ConfigError(f"{path}: was trained without --val-fraction, so there is no validation split")
    return part, _looker(content, opened, device)


def _open(path: str, content: dict[str, Any], data: str | None) -> DataSet:
    train = content["train"]
    opened = open_data(
        data or train["data"], image_size=content["data"]["image_size"],
        val_fraction=0.0 if data else train["val_fraction"], on_bad_image=train["on_bad_image"],
        label_column=train["label_column"],
    )  # fmt: skip
    if list(opened.classes) != content["data"]["classes"]:
        raise DataError(f"{path}: was trained on other classes than {opened.name} has")
    if opened.channels != content["data"]["channels"]:
        raise DataError(f"{path}: takes {content['data']['channels']} channels, {opened.name} has {opened.channels}")
    return opened


def _looker(content: dict[str, Any], opened: DataSet, device: torch.device) -> Looker:
    shown = content["data"]
    view = View.of(
        size=shown["image_size"], stored=shown["stored_size"], pad=0,
        mean=tuple(shown["mean"]), std=tuple(shown["std"]), device=device,
    )  # fmt: skip
    return Looker(view, World(), device, resident=True, workers=0, progress=True)
