"""Measure finished runs again, alone and as an ensemble."""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from transnet import d4
from transnet.data import DataSet, open_data
from transnet.data.augment import View
from transnet.data.catalog import NAMES
from transnet.data.geometry import Geometry, Pixels
from transnet.data.parquet import find_shards
from transnet.errors import ConfigError, DataError
from transnet.runs.config import TrainConfig
from transnet.runs.folder import Run, load
from transnet.runs.predictions import NAME, Predictions
from transnet.runs.records import RunSettings
from transnet.train.device import find_device, fits_on_device
from transnet.train.distributed import World
from transnet.train.eval_loader import Looker
from transnet.train.evaluate import class_scores, ensemble_scores, outputs, scores_of


def evaluate_runs(
    paths: Sequence[str], *, data: str | None = None, split: Literal["test", "val"] = "test", device: str = "auto",
    anytime: bool = False,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Every run's scores, and their ensemble's where there are several: ``{run: {"plain": …, "flip": … | None}}``.

    Each also has ``classes``: the `class_scores` of its pruned classifier on the images alone, or of its full model if
    there is no pruned one.

    Args:
        paths: folders of finished runs. Those of one ensemble must have the same test images.
        data: another data set with the same classes; None: the run's own.
        split: ``val`` for a run with a validation split.
        device: where to compute.
        anytime: say of each run also what anytime prediction costs and reaches, on the images alone: ``anytime``.
    """
    if not paths:
        raise ConfigError("evaluate: no run given; give the folder of a finished run")
    if len({Path(path).resolve() for path in paths}) < len(paths):
        raise ConfigError("evaluate: a run is given twice; each counts once")
    if len(paths) > 1 and "ensemble" in map(str, paths):
        raise ConfigError('evaluate: "ensemble" is what the result calls all runs together; give ./ensemble')
    for path in paths if anytime else ():
        if len(d4.parse(Run(path).settings().train.transforms)) == 1:
            raise ConfigError(f"{path} has one head, so there is nothing to stop early; leave it out", field="anytime")
    measured = [collect(path, data=data, split=split, device=device) for path in paths]
    results: dict[str, dict[str, Any]] = {}
    for path, run in zip(paths, measured, strict=True):
        views = [
            scores_of(logits, run.labels, run.transforms, passes=i + 1) for i, logits in enumerate(run.views)
        ]  # fmt: skip
        results[str(path)] = {
            "plain": views[0],
            "flip": views[1] if len(views) > 1 else None,
            "classes": class_scores(_one_classifier([run]), run.labels, run.classes, run.n_train),
        }
        if anytime:
            results[str(path)]["anytime"] = _anytime(path, run, data, split, device)
    if len(paths) > 1 and len({run.fingerprint for run in measured}) == 1:  # else they were tested on different images
        results["ensemble"] = ensemble_scores(
            [run.views for run in measured], measured[0].labels, [run.transforms for run in measured]
        )
        first = measured[0]
        results["ensemble"]["classes"] = class_scores(_one_classifier(measured), first.labels, first.classes)
    return results


def _one_classifier(runs: Sequence["Outputs"]) -> Tensor:
    """The mean logits of the runs' pruned classifiers, or of their full models if one of the runs has no r0."""
    if all("r0" in run.transforms for run in runs):
        return torch.stack([run.views[0][:, run.transforms.index("r0")] for run in runs]).mean(0)
    return torch.stack([run.views[0].mean(1) for run in runs]).mean(0)


def _anytime(path: str, run: "Outputs", data: str | None, split: str, device: str) -> dict[str, Any]:
    """What anytime prediction costs and reaches; where the run has a validation split, that chooses the thresholds."""
    from transnet.early_exit import curve, tradeoff

    apart = data is None and split == "test" and Run(path).settings().train.val_fraction > 0
    other = collect(path, split="val", device=device) if apart else run
    points = tradeoff(run.views[0], run.labels, (other.views[0], other.labels))
    whole = curve(run.views[0], run.labels)
    return {"judged_by": split, "chosen_on": "val" if apart else split, "heads": whole.heads, "full": whole.full,
            "points": points.columns(), "curve": whole.columns()}  # fmt: skip


@dataclass(frozen=True)
class Outputs:
    """What a network said of every image of a split.

    Attributes:
        views: logits (N, m, K), of the plain images and, where training flips, the mean with those of the flipped.
        labels: (N,).
        transforms: the heads' names.
        fingerprint: of the images and labels.
        classes: the labels' names.
        n_train: the number of training images of each class; None if the split belongs to other data than the run's.
    """

    views: tuple[Tensor, ...]
    labels: Tensor
    transforms: tuple[str, ...]
    fingerprint: str
    classes: tuple[str, ...]
    n_train: tuple[int, ...] | None


def collect(
    path: str | Path, *, data: str | DataSet | None = None, split: Literal["test", "val"] = "test", device: str = "auto"
) -> Outputs:
    """Run a finished run's network over a split and keep its outputs, for scores and ensembles of any kind."""
    where = find_device(device, World())
    settings = Run(path).settings()
    net = load(path).to(where)
    if isinstance(data, DataSet):
        opened = data
    else:
        opened = _other_data(str(path), settings, data) if data else own_data(path)
        if data and split == "val" and opened.val is None and settings.train.val_fraction:
            opened = own_data(path, at=data)  # the run's own, elsewhere: cut as it was for training
    part = opened.val if split == "val" else opened.test
    if part is None:
        why = f"{opened.name} has none" if data else "it was trained without `val_fraction`"
        raise ConfigError(f"{path}: there is no validation split: {why}")
    look = _looker(settings, opened, where)
    views = outputs(net, look(split, part), flip=settings.data.flip, autocast=nullcontext)
    own = opened.fingerprint == settings.data.fingerprint
    n_train = torch.bincount(opened.train.labels, minlength=len(opened.classes)).tolist() if own else None
    return Outputs(
        tuple(views), part.labels, net.transforms, part.fingerprint, opened.classes,
        tuple(n_train) if n_train else None,
    )  # fmt: skip


def save_predictions(path: str | Path, *, data: str | None = None, device: str = "auto") -> Path:
    """Write a finished run's class scores on its test images to ``predictions.npz`` in its folder.

    Args:
        path: the run's folder.
        data: where its data is, if not at the recorded place.
        device: where to compute.
    """
    run = Run(path)
    found = collect(path, data=own_data(path, at=data), device=device)
    scores = [view.half().numpy() for view in found.views]
    predictions = Predictions(
        heads=found.transforms,
        scores=scores[0],
        scores_flip=scores[1] if len(scores) > 1 else None,
        labels=found.labels.numpy(),
        model_sha256=run.result().model_sha256,
        fingerprint=run.settings().data.fingerprint,
    )
    predictions.save(run.path / NAME)
    return run.path / NAME


def own_data(path: str | Path, *, at: str | None = None) -> DataSet:
    """The data that a run was trained on, opened again.

    Args:
        path: the run's folder.
        at: where it lies, where that is not what the run calls it.

    Raises:
        DataError: where it is not there any more, or has changed.
    """
    settings = Run(path).settings()
    train = settings.train
    shares = {name: getattr(train, name) for name in ("image_size", "val_fraction", "train_fraction")}
    opened = _open_again(str(path), train, at, **shares)
    if opened.fingerprint != settings.data.fingerprint:
        here = _place_of(train.data, str(path))
        what = at or here
        hint = "" if at else f"; to measure on what is there now, give `data` {here}, or the old one's place"
        raise DataError(
            f"{what} is not what {path} was trained on: the content, order or splits differ{hint}",
            field="data" if at else None,
        )
    return opened


def some_images(path: str, n: int, *, data: str | None = None) -> list[Pixels]:
    """Up to ``n`` images of a run's test split, from all over it, as they were decoded: to try a model on.

    Args:
        path: the run's folder.
        n: how many.
        data: where the run's data lies, where that is not what the run calls it.

    Raises:
        DataError: where the data is not there any more, or has changed.
    """
    test = own_data(path, at=data).test
    return [test.decode(int(i)) for i in torch.linspace(0, len(test) - 1, min(n, len(test))).long()]


def _other_data(path: str, settings: RunSettings, data: str) -> DataSet:
    """Data that a run was not trained on, or not all of it; its network must be able to take it."""
    folder = Path(os.path.expanduser(data))
    train = settings.train
    if not folder.is_dir() or not find_shards(folder):
        train = replace(train, label_column=None)  # the other data has no columns
    own = settings.data
    opened = _open_again(path, train, data, image_size=own.image_size, channels=own.channels)
    if tuple(opened.classes) != own.classes:
        raise DataError(f"{path}: was trained on other classes than {opened.name} has")
    return opened


def _open_again(path: str, train: TrainConfig, data: str | None, **how: Any) -> DataSet:
    try:
        return open_data(
            data or _place_of(train.data, path),
            on_bad_image=train.on_bad_image,
            label_column=train.label_column,
            **how,
        )
    except DataError as error:
        if data:
            raise
        raise DataError(f"{error} ({path} was trained on it; where it lies elsewhere now, give `data`)") from None


def _place_of(data: str, path: str) -> str:
    """Where a run's data lies: seen from another folder than it was trained in, beside the run or above it."""
    given = Path(os.path.expanduser(data))
    if data in NAMES or given.is_absolute() or ".." in given.parts or given.exists():
        return data
    beside = (folder / given for folder in Path(path).resolve().parents)
    return next((str(place) for place in beside if place.exists()), data)


def _looker(settings: RunSettings, data: DataSet, device: torch.device) -> Looker:
    """The run's view of the images; they are streamed if training would stream them on this device."""
    own, train = settings.data, settings.train
    geometry = Geometry.square(own.image_size, stored=own.stored_size)
    view = View.create(geometry, mean=own.mean, std=own.std, device=device)
    resident = fits_on_device(data, train.storage, device)
    return Looker(view, World(), device, resident=resident, workers=train.workers, progress=True)
