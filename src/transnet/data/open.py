"""Open a dataset: from a name, a folder, parquet shards or an ``.npz`` to images in splits."""

import difflib
import hashlib
import json
import os
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from transnet.console import listed
from transnet.data.arrays import read_npz
from transnet.data.catalog import DATASETS, NAMES, NamedDataset, data_folder
from transnet.data.dataset import DataSet
from transnet.data.folder import read_folder
from transnet.data.geometry import Geometry, Pixels, Size
from transnet.data.parquet import find_shards, read_parquet
from transnet.data.source import Rows, Source
from transnet.data.split import Split
from transnet.data.survey import Records, statistics, survey
from transnet.errors import DataError

TEST_FRACTION = 0.2
# Results of runs with different seeds are compared, so the test set must not depend on the seed.
_TEST_SEED = 0
# Up to this side, images of one square size are used as they are and padded, as is usual for CIFAR.
_SMALL = 64
_KINDS = f"it is a name ({' '.join(NAMES)}), a folder or an .npz"


def open_data(
    data: str,
    *,
    image_size: int | None = None,
    channels: int | None = None,
    val_fraction: float = 0.0,
    train_fraction: float = 1.0,
    seed: int = 0,
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
        data: a name (see `transnet.data.catalog`); a folder of class folders, or a folder with train/ and val/ or test/
            of such inside (a lone val/ is the test set); a folder of parquet shards; an ``.npz`` (see
            `transnet.data.arrays.read_npz`). If a folder has the same name as a dataset, write ``./cifar10``.
        image_size: side of the square that the network sees; None: the dataset's own.
        channels: 1 converts all images to grey, 3 to RGB; None: 1 if all images are grey, otherwise 3.
        val_fraction: the share of the training images, class by class, that becomes the validation split.
        train_fraction: the share of the remaining training images to use, class by class.
        seed: chooses the images of these two shares, and nothing else. It is not the seed of a training run: do not
            change it, so that runs can be compared on one validation split.
        on_bad_image: "stop" raises if an image cannot be read, "skip" leaves it out and lists it.
        label_column: the column of labels in parquet shards; None finds it.
        progress: whether to show progress, if standard error is a terminal.

    Raises:
        DataError: if anything is wrong with the data or the options; the message says what would work.
    """
    _check_options(image_size, val_fraction, train_fraction, on_bad_image)
    name, source = _read(data, label_column, progress=progress)
    named = DATASETS.get(data)

    def expect(sample: Records) -> tuple[Size, int]:
        return _geometry(named, sample, image_size).stored, channels or _channels(sample)

    records, decoded = survey(source.store, progress=progress, expect=expect)
    splits, skipped = _without_bad(name, source, records, on_bad_image)
    splits = _with_test(name, splits, source, records)
    splits = _with_val(name, splits, source, records, fraction=val_fraction, seed=seed)
    splits = _with_less_train(splits, source, records, fraction=train_fraction, seed=seed)
    _check_splits(name, source, splits)

    used = records[np.concatenate(list(splits.values()))]
    geometry = _geometry(named, used, image_size)
    flip = named.flip if named else not _is_colourless(used)
    channels = channels or _channels(used)
    mean, std = statistics(records[splits["train"]], channels)
    opened = {
        split: Split(
            source.store, rows, source.labels[rows], np.array(records["sha"][rows]), channels=channels, decoded=decoded
        )
        for split, rows in splits.items()
    }
    view = [source.classes, channels, geometry.size[0], geometry.stored[0], geometry.pad, flip]
    contents = {split: part.fingerprint for split, part in opened.items()}
    return DataSet(
        name=name,
        classes=source.classes,
        channels=channels,
        geometry=geometry,
        flip=flip,
        square=bool((used["height"] == used["width"]).all()),
        mean=mean,
        std=std,
        train=opened["train"],
        val=opened.get("val"),
        test=opened["test"],
        skipped=skipped,
        fingerprint=hashlib.sha256(json.dumps([view, contents], sort_keys=True).encode()).hexdigest(),
    )


def _check_options(image_size: int | None, val_fraction: float, train_fraction: float, on_bad_image: str) -> None:
    if image_size is not None and image_size < 1:
        raise DataError(
            f"{image_size} is no size; give the side of the square in pixels, such as 32", field="image_size"
        )
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
        raise DataError(
            f"{data} has no columns; only folders of parquet shards have. Leave it out", field="label_column"
        )
    if named and not replaced:
        return name, named.read(progress)
    if path.is_dir():
        return name, read_folder(path)
    if path.is_file() and path.suffix.lower() == ".npz":
        return path.stem, read_npz(path)
    if path.exists():
        raise DataError(f"{path} is not a folder and not an .npz; {_KINDS}", field="data")
    raise DataError(_not_found(data, path), field="data")


def _not_found(data: str, path: Path) -> str:
    try:
        siblings = [str(path.parent / name) for name in os.listdir(path.parent)]
    except OSError:
        siblings = []
    close = difflib.get_close_matches(data.lower(), [*NAMES, *siblings], n=1, cutoff=0.6)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"{data}: no such name, folder or file{hint}; known names are {' '.join(NAMES)}"


def _without_bad(
    name: str, source: Source, records: Records, on_bad_image: str
) -> tuple[dict[str, Rows], tuple[str, ...]]:
    """The splits without images that cannot be read, and those images."""
    used = np.concatenate(list(source.splits.values()))
    bad = used[records["bad"][used]]
    if not len(bad):
        return source.splits, ()
    skipped = tuple(source.store.where(int(row)) for row in bad)
    if on_bad_image == "stop":
        others = f". Others: {listed(skipped[1:], 9)}" if len(bad) > 1 else ""
        raise DataError(
            f"{name}: {len(bad)} of {len(used)} images cannot be read. {_why(source, int(bad[0]))}{others}. Repair or"
            " remove them, or set `on_bad_image` to skip to leave them out"
        )
    return {split: rows[~records["bad"][rows]] for split, rows in source.splits.items()}, skipped


def _why(source: Source, row: int) -> str:
    try:
        source.store.pixels(row, check=True)
    except DataError as error:
        return f"The first is {error}"
    return f"The first is {source.store.where(row)}, which could be read just now; start again"


def _choose(labels: Rows, hashes: Pixels, fraction: float, seed: int | str) -> npt.NDArray[np.bool_]:
    """Choose a stratified ``fraction`` of the images: of each class its share, at least one and never all.

    The choice depends only on the images' contents and the seed. So it is the same on every machine and for every order
    of the files, and an added image changes it for few others.

    A class with one image keeps it. Returns a mask of the rows.
    """
    lot = np.array([hashlib.sha256(f"{seed} ".encode() + sha.tobytes()).digest() for sha in hashes], dtype="S32")
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        count = min(max(1, round(fraction * len(rows))), len(rows) - 1)
        chosen[rows[np.argsort(lot[rows], kind="stable")[:count]]] = True
    return chosen


def _with_test(name: str, splits: dict[str, Rows], source: Source, records: Records) -> dict[str, Rows]:
    if "test" in splits:
        return splits
    rows = splits["train"]
    labels = source.labels[rows]
    for label in np.unique(labels):
        if (labels == label).sum() < 2:
            raise DataError(
                f"{name}: class {source.classes[label]!r} has one image, but one for training and one for the test are"
                " needed; add images, or a test/ folder"
            )
    test = _choose(labels, records["sha"][rows], TEST_FRACTION, _TEST_SEED)
    return {**splits, "train": rows[~test], "test": rows[test]}


def _with_val(
    name: str, splits: dict[str, Rows], source: Source, records: Records, *, fraction: float, seed: int
) -> dict[str, Rows]:
    if not fraction:
        return splits
    if "val" in splits:
        raise DataError(f"{name} has a validation set; leave this out", field="val_fraction")
    rows = splits["train"]
    # With another seed than the test set, which would otherwise order the images in the same way.
    val = _choose(source.labels[rows], records["sha"][rows], fraction, f"val {seed}")
    if not val.any():
        raise DataError(f"{name}: no class has two training images, so none can be kept for validation")
    return {"train": rows[~val], "val": rows[val], "test": splits["test"]}


def _with_less_train(
    splits: dict[str, Rows], source: Source, records: Records, *, fraction: float, seed: int
) -> dict[str, Rows]:
    if fraction == 1:
        return splits
    rows = splits["train"]
    labels = source.labels[rows]
    alone = np.bincount(labels)[labels] == 1  # without its only image a class could not be trained
    return {**splits, "train": rows[_choose(labels, records["sha"][rows], fraction, f"train {seed}") | alone]}


def _check_splits(name: str, source: Source, splits: dict[str, Rows]) -> None:
    if len(source.classes) < 2:
        raise DataError(f"{name}: only one class, {source.classes[0]!r}; a classifier needs two")
    for split, rows in splits.items():
        if not len(rows):
            raise DataError(f"{name}: no images are left in the {split} split")
    trained = set(np.unique(source.labels[splits["train"]]).tolist())
    if missing := [source.classes[i] for i in range(len(source.classes)) if i not in trained]:
        have = "1 class has" if len(missing) == 1 else f"{len(missing)} classes have"
        raise DataError(f"{name}: {have} no training images, among them {missing[0]!r}")


def _geometry(named: NamedDataset | None, records: Records, image_size: int | None) -> Geometry:
    """The geometry of a named dataset, or one that fits the images, for inputs of the given size."""
    if named:
        return named.geometry if image_size is None else named.geometry.scaled(image_size)
    sides = np.minimum(records["height"], records["width"])
    side = int(sides[0])
    if side <= _SMALL and bool((records["height"] == side).all() and (records["width"] == side).all()):
        return Geometry.square(side, pad=side // 8).scaled(image_size or side)
    return Geometry.square(224, stored=256).scaled(image_size or min(224, int(np.median(sides))))


def _channels(records: Records) -> int:
    return 1 if records["grey"].all() else 3


def _is_colourless(records: Records) -> bool:
    """Whether all images are grey, even if some are stored as RGB: each channel then has the same moments."""
    moments = np.concatenate([records["mean"], records["square"]])
    return bool((abs(moments - moments[:, :1]) < 1e-9).all())  # sums of thousands of values differ in the last digits
