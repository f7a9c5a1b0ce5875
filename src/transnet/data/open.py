"""Open a dataset: from a name, a folder, parquet shards or an ``.npz`` to images in splits."""

import difflib
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from transnet.console import listed
from transnet.data.arrays import read_npz
from transnet.data.catalog import DATASETS, NAMES, NamedDataset, data_folder
from transnet.data.dataset import DataSet, Split
from transnet.data.folder import read_folder
from transnet.data.parquet import find_shards, read_parquet
from transnet.data.pixels import Geometry, Pixels, Size
from transnet.data.source import Rows, Source, load_pixels
from transnet.data.survey import Records, statistics, survey
from transnet.errors import DataError

Mask = npt.NDArray[np.bool_]
_TEST_FRACTION = 0.2
_TEST_SEED = 0  # not that of a run: results of runs with different seeds are compared
_SMALL = 64  # up to this side, images of one square size are used as they are and padded, as is usual for CIFAR
_KINDS = f"it is a name ({' '.join(NAMES)}), a folder or an .npz"


def open_data(
    data: str,
    *,
    image_size: int | None = None,
    channels: int | None = None,
    val_fraction: float = 0.0,
    train_fraction: float = 1.0,
    seed: int = 0,
    subset_seed: int | None = None,
    on_bad_image: Literal["stop", "skip"] = "stop",
    label_column: str | None = None,
    progress: bool = True,
) -> DataSet:
    """Open any dataset that TransNet can train on. Every image is checked once, and the result is cached.

    If a dataset has no test set, a stratified 20 % of the images becomes the test set: always the same images, on every
    machine and for every seed. For a dataset without a name, the network's input is as follows:

    - If all images are squares of one size up to 64, it has that size, and crops are padded by an eighth of it.
    - Otherwise it is a square of 224 (or the median shorter side, if that is less), cropped from images whose shorter
      side is 256/224 of it.
    - Training flips coloured images left-right, but not grey ones (digits, letters), even if they are stored as RGB.

    Args:
        data: a name (see `transnet.data.catalog`), a folder of class folders, a folder with train/ and val/ or test/
            (a lone val/ is the test set), a folder of parquet shards, or an ``.npz`` (see
            `transnet.data.arrays.read_npz`). If a folder has the same name as a dataset, write ``./cifar10``.
        image_size: side of the square that the network sees; None: the dataset's own.
        channels: 1 converts all images to grey, 3 to RGB; None: 1 if all images are grey, otherwise 3.
        val_fraction: the share of the training images, class by class, that ``seed`` chooses for validation.
        train_fraction: the share of the others to use, chosen by ``subset_seed``, or by ``seed`` if that is None.
        on_bad_image: "stop" raises if an image cannot be read, "skip" leaves it out and lists it.
    """
    _check_options(image_size, val_fraction, train_fraction, on_bad_image)
    name, source = _read(data, label_column, progress=progress)
    if len(source.classes) < 2:
        raise DataError(f"{data}: only one class, {source.classes[0]!r}; a folder needs one folder for each class")
    named = DATASETS.get(data)

    def expect(sample: Records) -> tuple[Size, int]:
        return _geometry(named, sample, image_size).stored, channels or (1 if sample["grey"].all() else 3)

    records, decoded = survey(source.store, progress=progress, expect=expect)
    source, skipped = _without_bad(name, source, records["bad"], on_bad_image)
    subset_seed = seed if subset_seed is None else subset_seed
    splits = _split(name, source, records["sha"], val_fraction, train_fraction, seed, subset_seed)

    used = records[np.concatenate(list(splits.values()))]
    geometry = _geometry(named, used, image_size)
    flip = named.flip if named else not _is_colourless(used)
    channels = channels or (1 if used["grey"].all() else 3)
    mean, std = statistics(records[splits["train"]], channels)
    opened = {}
    for split, rows in splits.items():
        hashes = np.array(records["sha"][rows])
        opened[split] = Split(source.store, rows, source.labels[rows], hashes, channels=channels, decoded=decoded)
    # Published runs record this fingerprint.
    view = [source.classes, channels, geometry.size[0], geometry.stored[0], geometry.pad, flip]
    contents = {split: part.fingerprint for split, part in opened.items()}
    return DataSet(
        name=name, classes=source.classes, channels=channels, geometry=geometry, flip=flip,
        square=bool((used["height"] == used["width"]).all()), mean=mean, std=std,
        train=opened["train"], val=opened.get("val"), test=opened["test"], skipped=skipped,
        fingerprint=hashlib.sha256(json.dumps([view, contents], sort_keys=True).encode()).hexdigest(),
    )  # fmt: skip


def _check_options(image_size: int | None, val_fraction: float, train_fraction: float, on_bad_image: str) -> None:
    if image_size is not None and image_size < 1:
        raise DataError(f"{image_size} is no size; give the side in pixels, such as 32", field="image_size")
    if not 0 <= val_fraction < 1:
        raise DataError(f"{val_fraction} is not in [0, 1); 0.1 keeps a tenth for validation", field="val_fraction")
    if not 0 < train_fraction <= 1:
        raise DataError(f"{train_fraction} is not in (0, 1]; 0.1 trains on a tenth", field="train_fraction")
    if on_bad_image not in ("stop", "skip"):
        raise DataError(f"unknown {on_bad_image!r}; known are stop and skip", field="on_bad_image")


def _read(data: str, label_column: str | None, *, progress: bool) -> tuple[str, Source]:
    """The dataset's name and content."""
    if not data:
        raise DataError(f"none given; {_KINDS}", field="data")
    named = DATASETS.get(data)
    # os.path's function, because pathlib's raises if there is no such user.
    path = data_folder() / data if named else Path(os.path.expanduser(data))
    name = data if named else Path(os.path.abspath(path)).name
    replaced = not named or (named.folder and path.is_dir())  # a named dataset may be replaced by a folder of that name
    if replaced and path.is_dir() and (shards := find_shards(path)):
        return name, read_parquet(path, shards, label_column=label_column)
    if label_column is not None:
        raise DataError(f"{data} has no columns; leave it out: only parquet shards have them", field="label_column")
    if named and not replaced:
        return name, named.read(progress)
    if path.is_dir():
        return name, read_folder(path)
    if path.is_file() and path.suffix.lower() == ".npz":
        return path.stem, read_npz(path)
    if path.exists():
        raise DataError(f"{path} is not a folder and not an .npz; {_KINDS}", field="data")
    siblings = [str(sibling) for sibling in path.parent.glob("*")]
    close = difflib.get_close_matches(data.lower(), [*NAMES, *siblings], n=1, cutoff=0.6)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise DataError(f"{data}: no such name, folder or file{hint}; known names are {' '.join(NAMES)}", field="data")


def _without_bad(name: str, source: Source, is_bad: Mask, on_bad_image: str) -> tuple[Source, tuple[str, ...]]:
    """The source without images that cannot be read, and those images."""
    used = np.concatenate(list(source.splits.values()))
    bad = used[is_bad[used]].tolist()
    skipped = tuple(source.store.where(row) for row in bad)
    if bad and on_bad_image == "stop":
        why = f"{skipped[0]}, which could be read just now; start again"
        try:
            load_pixels(source.store, bad[0], check=True)
        except DataError as error:
            why = str(error)
        others = f". Others: {listed(skipped[1:], 9)}" if len(bad) > 1 else ""
        raise DataError(
            f"{name}: {len(bad)} of {len(used)} images cannot be read. The first is {why}{others}. Repair or remove"
            " them, or set `on_bad_image` to skip"
        )
    return replace(source, splits={split: rows[~is_bad[rows]] for split, rows in source.splits.items()}), skipped


def _split(
    name: str, source: Source, hashes: Pixels, val_fraction: float, train_fraction: float, seed: int, subset_seed: int
) -> dict[str, Rows]:
    """Split the images as far as the data does not, and leave out training images that are not to be used."""

    def choose(fraction: float, seed: int | str) -> Mask:
        return _choose(source.labels[train], hashes[train], fraction, seed)

    train, val, test = source.splits["train"], source.splits.get("val"), source.splits.get("test")
    if test is None:  # many datasets publish only a validation set to test on
        test, val = val, None
    if test is None:
        if len(alone := np.flatnonzero(np.bincount(source.labels[train]) == 1)):
            only = source.classes[alone[0]]
            raise DataError(f"{name}: class {only!r} has one image; add another, or a test/ folder")
        chosen = choose(_TEST_FRACTION, _TEST_SEED)
        train, test = train[~chosen], train[chosen]
    if val_fraction:
        if val is not None:
            raise DataError(f"{name} has a validation set; leave this out", field="val_fraction")
        # With another seed than the test set, which would otherwise order the images in the same way.
        chosen = choose(val_fraction, f"val {seed}")
        train, val = train[~chosen], train[chosen]
    if train_fraction < 1:
        labels = source.labels[train]
        alone = np.bincount(labels)[labels] == 1  # without its only image a class could not be trained
        train = train[choose(train_fraction, f"train {subset_seed}") | alone]

    splits = {"train": train, "test": test} | ({} if val is None else {"val": val})
    for split, rows in splits.items():
        if not len(rows):
            raise DataError(f"{name}: no images are left in the {split} split")
    counts = np.bincount(source.labels[train], minlength=len(source.classes))
    if missing := [source.classes[i] for i in np.flatnonzero(counts == 0)]:
        raise DataError(
            f"{name}: no training images for {len(missing)} of {len(source.classes)} classes, among them {missing[0]!r}"
        )
    return splits


def _choose(labels: Rows, hashes: Pixels, fraction: float, seed: int | str) -> Mask:
    """Choose a stratified ``fraction`` of the images: of each class its share, at least one and never all.

    The choice depends only on the images' contents and the seed, so an added image changes it for few others.
    """
    lot = np.array([hashlib.sha256(f"{seed} ".encode() + sha.tobytes()).digest() for sha in hashes], dtype="S32")
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        count = min(max(1, round(fraction * len(rows))), len(rows) - 1)
        chosen[rows[np.argsort(lot[rows], kind="stable")[:count]]] = True
    return chosen


def _geometry(named: NamedDataset | None, records: Records, image_size: int | None) -> Geometry:
    """The geometry of a named dataset, or one that fits the images, for inputs of the given size."""
    if named:
        return named.geometry if image_size is None else named.geometry.scaled(image_size)
    sides = np.minimum(records["height"], records["width"])
    side = int(sides[0])
    if side <= _SMALL and bool((records["height"] == side).all() and (records["width"] == side).all()):
        return Geometry.square(side, pad=side // 8).scaled(image_size or side)
    return Geometry.square(224, stored=256).scaled(image_size or min(224, int(np.median(sides))))


def _is_colourless(records: Records) -> bool:
    """Whether all images are grey, even if some are stored as RGB."""
    moments = np.concatenate([records["mean"], records["square"]])
    return bool((abs(moments - moments[:, :1]) < 1e-9).all())  # rounding differs
