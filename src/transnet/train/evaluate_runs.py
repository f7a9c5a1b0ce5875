"""Evaluate finished runs on their data, alone and as an ensemble."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from transnet.data import DataSet, open_data
from transnet.data.augment import View
from transnet.data.catalog import DATASETS
from transnet.data.parquet import find_shards
from transnet.data.pixels import Geometry, Pixels
from transnet.early_exit import Curve, curve, tradeoff
from transnet.errors import ConfigError, DataError
from transnet.runs.config import TrainConfig
from transnet.runs.folder import Run, load
from transnet.runs.predictions import NAME, Predictions
from transnet.runs.records import RunSettings, Scores
from transnet.train.device import find_device, fits_on_device, use_channels_last
from transnet.train.distributed import World
from transnet.train.evaluate import ClassScore, class_scores, ensemble_scores, logits_of, scores_of_logits
from transnet.train.feed import eval_batches

SplitName = Literal["test", "val"]


@dataclass(frozen=True)
class Outputs:
    """A network's outputs for every image of a split."""

    views: tuple[Tensor, ...]  # logits (N, m, K) on the images as they are and, if training flips, of flip TTA
    labels: Tensor  # (N,)
    transforms: tuple[str, ...]  # one per head
    fingerprint: str  # hash of the images and labels
    classes: tuple[str, ...]
    n_train: tuple[int, ...] | None  # training images of each class; None if the data is not the run's own

    @property
    def classifier(self) -> Tensor:
        """The logits (N, K) of the pruned classifier, or of the full model if there is no r0, on the images alone."""
        return self.views[0][:, self.transforms.index("r0")] if "r0" in self.transforms else self.views[0].mean(1)


@dataclass(frozen=True)
class EarlyExit:
    """Accuracy and cost of early exit, on the images alone."""

    judged_by: str  # the split that it is measured on
    chosen_on: str  # the split that the thresholds are chosen on
    points: Curve  # a few thresholds, from one head to all
    curve: Curve


@dataclass(frozen=True)
class Evaluation:
    """One run, or an ensemble of several, on one split."""

    plain: Scores  # on the images alone
    flip: Scores | None  # with flip TTA; None if training does not flip
    classes: tuple[ClassScore, ...]  # for the pruned classifier (without r0, for the full model)
    early_exit: EarlyExit | None = None  # None if it was not requested


def evaluate_runs(
    paths: Sequence[str], *, data: str | None = None, split: SplitName = "test", device: str = "auto",
    early_exit: bool = False, save_predictions: bool = False, transform: str | Sequence[str] = (),
) -> dict[str, Evaluation]:  # fmt: skip
    """Evaluate each finished run and, if there are several on the same images, their ``ensemble``.

    ``data`` is another dataset with the same classes, instead of the run's own. ``transform`` has the functions of the
    user's own that the runs were trained with, as for `load`.
    """
    if not paths:
        raise ConfigError("no run was given; give the folder of a finished run", field="runs")
    if len({Path(path).resolve() for path in paths}) < len(paths):
        raise ConfigError("a run is given twice; each counts once", field="runs")
    if len(paths) > 1 and "ensemble" in map(str, paths):
        raise ConfigError('the result calls all runs together "ensemble"; give ./ensemble', field="runs")
    for path in paths if early_exit else ():
        if len(Run(path).settings().train.names) == 1:
            raise ConfigError(f"{path} has one head, so there is nothing to exit early; leave it out", field="anytime")
    if save_predictions and (data or split != "test"):
        raise ConfigError("only for the run's own test split; leave `data` and `split` out", field="save_predictions")
    own = [transform] if isinstance(transform, str) else list(transform)
    runs = {str(path): collect(path, data=data, split=split, device=device, transform=own) for path in paths}
    results = {}
    for path, run in runs.items():
        if save_predictions:
            _write_predictions(path, run)
        found = [scores_of_logits(view, run.labels, run.transforms, passes=i) for i, view in enumerate(run.views, 1)]
        classes = class_scores(run.classifier, run.labels, run.classes, run.n_train)
        exits = _early_exit(path, run, data, split, device, own) if early_exit else None
        results[path] = Evaluation(found[0], found[1] if len(found) > 1 else None, classes, exits)
    if len(runs) > 1 and len({run.fingerprint for run in runs.values()}) == 1:  # else their test images differ
        results["ensemble"] = _ensemble(list(runs.values()))
    return results


def _ensemble(runs: Sequence[Outputs]) -> Evaluation:
    labels, transforms = runs[0].labels, [run.transforms for run in runs]
    pruned = all("r0" in names for names in transforms)
    members = [run.classifier if pruned else run.views[0].mean(1) for run in runs]
    views = zip(*(run.views for run in runs), strict=False)  # flip TTA only if all have it
    found = [ensemble_scores(view, labels, transforms, passes=i) for i, view in enumerate(views, 1)]
    classes = class_scores(torch.stack(members).mean(0), labels, runs[0].classes)
    return Evaluation(found[0], found[1] if len(found) > 1 else None, classes)


def _early_exit(
    path: str, run: Outputs, data: str | None, split: SplitName, device: str, own: Sequence[str]
) -> EarlyExit:
    # The validation split chooses the thresholds, if there is one.
    separate = data is None and split == "test" and Run(path).settings().train.val_fraction > 0
    other = collect(path, split="val", device=device, transform=own) if separate else run
    points = tradeoff(run.views[0], run.labels, (other.views[0], other.labels))
    return EarlyExit(split, "val" if separate else split, points, curve(run.views[0], run.labels))


def collect(
    path: str | Path, *, data: str | DataSet | None = None, split: SplitName = "test", device: str = "auto",
    transform: str | Sequence[str] = (),
) -> Outputs:  # fmt: skip
    """Run a finished run's network over a split and return its outputs, for scores and ensembles of any kind."""
    where = find_device(device, World())
    settings = Run(path).settings()
    train, about = settings.train, settings.data
    net = load(path, transform=transform).to(where)
    if channels_last := use_channels_last("auto", where, net, about.channels):
        net = net.to(memory_format=torch.channels_last)
    opened = data if isinstance(data, DataSet) else _open(str(path), settings, data, split)
    part = opened.val if split == "val" else opened.test
    if part is None:
        why = f"{opened.name} has none" if data else "it was trained without `val_fraction`"
        raise ConfigError(f"{path}: there is no validation split: {why}")
    geometry = Geometry.square(about.image_size, stored=about.stored_size)
    view = View.create(geometry, mean=about.mean, std=about.std, device=where)
    view = replace(view, channels_last=channels_last)
    images = part.resident(geometry.stored).to(where) if fits_on_device(opened, train.storage, where) else None
    n_train = torch.bincount(opened.train.labels, minlength=len(opened.classes)).tolist()
    return Outputs(
        views=tuple(logits_of(net, eval_batches(part, images, view, World(), train.workers), flip=about.flip)),
        labels=part.labels, transforms=net.transforms, fingerprint=part.fingerprint, classes=opened.classes,
        n_train=tuple(n_train) if opened.fingerprint == about.fingerprint else None,
    )  # fmt: skip


def save_predictions(
    path: str | Path, *, data: str | None = None, device: str = "auto", transform: str | Sequence[str] = ()
) -> None:
    """Write a finished run's class scores on its test images to its folder; ``data`` as ``at`` of `own_data`."""
    _write_predictions(path, collect(path, data=own_data(path, at=data), device=device, transform=transform))


def _write_predictions(path: str | Path, found: Outputs) -> None:
    run = Run(path)
    plain, *flipped = (view.half().numpy() for view in found.views)
    Predictions(
        heads=found.transforms, scores=plain, scores_flip=flipped[0] if flipped else None, labels=found.labels.numpy(),
        model_sha256=run.result().model_sha256, fingerprint=run.settings().data.fingerprint,
    ).write(run.path / NAME)  # fmt: skip


def own_data(path: str | Path, *, at: str | None = None) -> DataSet:
    """Open the data that a run was trained on; ``at`` is where it is, if not at the place that its settings name."""
    settings = Run(path).settings()
    opened = _open_again(str(path), settings.train, at)
    if opened.fingerprint != settings.data.fingerprint:
        here = at or _place_of(settings.train.data, str(path))
        hint = "" if at else f"; to evaluate on what is there now, give `data` {here}, or the place of the original"
        problem = f"{here} is not what {path} was trained on: the content, order or splits differ{hint}"
        raise DataError(problem, field="data" if at else None)
    return opened


def some_images(path: str, n: int, *, data: str | None = None) -> list[Pixels]:
    """Decode up to ``n`` images spread over a run's test split, to try a model on; ``data`` as ``at`` of `own_data`."""
    test = own_data(path, at=data).test
    return [test.decode(int(i)) for i in torch.linspace(0, len(test) - 1, min(n, len(test))).long()]


def _open(path: str, settings: RunSettings, data: str | None, split: SplitName) -> DataSet:
    """Open the data to evaluate a run on: its own, or other data with the same classes."""
    if not data:
        return own_data(path)
    folder, own = Path(os.path.expanduser(data)), settings.data
    train = replace(settings.train, image_size=own.image_size, val_fraction=0.0, train_fraction=1.0)
    if not (folder.is_dir() and find_shards(folder)):
        train = replace(train, label_column=None)  # only shards have columns
    opened = _open_again(path, train, data, channels=own.channels)
    if opened.classes != own.classes:
        raise DataError(f"{path}: was trained on other classes than {opened.name} has")
    if split == "val" and opened.val is None and settings.train.val_fraction:
        return own_data(path, at=data)  # the run's own data in another place, split as for training
    return opened


def _open_again(path: str, train: TrainConfig, data: str | None, *, channels: int | None = None) -> DataSet:
    try:
        return open_data(
            data or _place_of(train.data, path), image_size=train.image_size, channels=channels,
            val_fraction=train.val_fraction, train_fraction=train.train_fraction, subset_seed=train.seed,
            on_bad_image=train.on_bad_image, label_column=train.label_column,
        )  # fmt: skip
    except DataError as error:
        if data:
            raise
        raise DataError(f"{error} ({path} was trained on it; if it is in another place now, give `data`)") from None


def _place_of(data: str, path: str) -> str:
    """Locate a run's data. A relative path is also tried next to the run's folder and in its parents."""
    given = Path(os.path.expanduser(data))
    if data in DATASETS or given.is_absolute() or ".." in given.parts or given.exists():
        return data
    found = (str(folder / given) for folder in Path(path).resolve().parents if (folder / given).exists())
    return next(found, data)
