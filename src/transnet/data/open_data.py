"""From what a user calls the data to a data set: a name, a folder, parquet shards or an ``.npz``."""

import difflib
import hashlib
import json
import os
from pathlib import Path
from typing import Literal

import numpy as np

from transnet.console import listed
from transnet.data.arrays import read_npz
from transnet.data.catalog import NAMED, Look, read_named
from transnet.data.dataset import Augmentation, DataSet
from transnet.data.download import data_folder
from transnet.data.folder import read_folder
from transnet.data.parquet import find_shards, read_parquet
from transnet.data.source import Rows, Source
from transnet.data.split import Split, cut
from transnet.data.survey import Survey, statistics, survey
from transnet.errors import DataError

TEST_FRACTION = 0.2
# Results of runs with different seeds are compared: the test set must not depend on theirs.
_TEST_SEED = 0
# Up to this side, images of one square size are taken as they are and padded, as one does with CIFAR.
_SMALL = 64


def open_data(
    data: str,
    *,
    image_size: int | None = None,
    val_fraction: float = 0.0,
    train_fraction: float = 1.0,
    seed: int = 0,
    on_bad_image: Literal["stop", "skip"] = "stop",
    label_column: str | None = None,
    progress: bool = True,
) -> DataSet:
    """Open any data set that TransNet can train on. Every image is looked at once, and the findings are kept.

    Without a test set of its own, a stratified 20 % of the images is the test set: always the same ones, on
    every machine, for every seed. What a data set without a name is shown as:

    - all images square and of one size up to 64: that size, padded by an eighth of it;
    - otherwise: squares of 224 (of the median shorter side, where that is less) cut out of images whose
      shorter side is 256/224 of it;
    - coloured images are flipped, grey ones (digits, letters) are not, be they stored as RGB.

    Args:
        data: a name (``digits cifar10 cifar100 fashion-mnist imagenette imagewoof imagenet200``); a folder of
            class folders, or with train/ and val/ or test/ of such inside (a lone val/ is the test set); a
            folder of parquet shards; an ``.npz`` (see `transnet.data.arrays.read_npz`). A name comes
            before a folder called the same: write ``./cifar10`` for that.
        image_size: side of the square the network sees; None: the data set's own.
        val_fraction: the share of the training images, class by class, that becomes the validation split.
        train_fraction: the share of the training images that is left then is used, class by class, to see what
            fewer images would do.
        seed: chooses the images of these shares, and nothing else. It is not the seed of a training run: leave
            it, so that runs can be compared on one validation split.
        on_bad_image: "stop" raises for an image that cannot be read, "skip" leaves it out and lists it.
        label_column: the column of labels in parquet shards; None finds it.
        progress: show what takes long, where standard error is a terminal.

    Raises:
        DataError: for anything that is wrong with the data or the options; the message says what would work.
    """
    _check_options(image_size, val_fraction, train_fraction, on_bad_image)
    name, source, look = _find(data, label_column, progress=progress)
    seen = survey(source.store, progress=progress)
    source, skipped = _without_bad(name, source, seen, on_bad_image)

    parts = _cut_test(name, source, seen)
    parts = _cut_val(name, parts, source, seen, fraction=val_fraction, seed=seed)
    parts = _cut_train(parts, source, seen, fraction=train_fraction, seed=seed)
    _check_classes(name, source, parts)

    used = seen[np.concatenate(list(parts.values()))]
    channels = 1 if used["grey"].all() else 3
    look, stored_size = _look(look, used, image_size)
    augmentation = Augmentation(pad=look.pad or 0, flip=look.flip)
    mean, std = statistics(seen[parts["train"]], channels)
    splits = {
        part: Split(source.store, rows, source.labels[rows], np.array(seen["sha"][rows]), channels=channels)
        for part, rows in parts.items()
    }
    shown = [source.classes, channels, look.image_size, stored_size, augmentation.pad, augmentation.flip]
    contents = {part: split.fingerprint for part, split in splits.items()}
    return DataSet(
        name=name,
        classes=source.classes,
        channels=channels,
        image_size=look.image_size,
        stored_size=stored_size,
        square=bool((used["height"] == used["width"]).all()),
        augmentation=augmentation,
        mean=mean,
        std=std,
        train=splits["train"],
        val=splits.get("val"),
        test=splits["test"],
        skipped=skipped,
        fingerprint=hashlib.sha256(json.dumps([shown, contents], sort_keys=True).encode()).hexdigest(),
    )


def _check_options(image_size: int | None, val_fraction: float, train_fraction: float, on_bad_image: str) -> None:
    if image_size is not None and image_size < 1:
        raise DataError(f"image_size: {image_size} is no size; give the side of the square in pixels, such as 32")
    if not 0 <= val_fraction < 1:
        raise DataError(f"val_fraction: {val_fraction} is not in [0, 1); 0.1 keeps a tenth for validation")
    if not 0 < train_fraction <= 1:
        raise DataError(f"train_fraction: {train_fraction} is not in (0, 1]; 0.1 trains on a tenth of the images")
    if on_bad_image not in ("stop", "skip"):
        raise DataError(f"on_bad_image: unknown {on_bad_image!r}; known are stop and skip")


def _find(data: str, label_column: str | None, *, progress: bool) -> tuple[str, Source, Look | None]:
    if not data:
        raise DataError(f"data: none given; it is a name ({' '.join(NAMED)}), a folder or an .npz")
    path = Path(os.path.expanduser(data))  # pathlib's raises where there is no such user
    look = NAMED.get(data)
    name = data if look else Path(os.path.abspath(path)).name
    if look:
        path = data_folder() / data
        # Two of the names need no such folder: one downloads nothing, one keeps its archives there.
        if not path.is_dir() or data in ("digits", "fashion-mnist"):
            _only_parquet(data, label_column)
            return name, read_named(data, progress=progress), look
    if path.is_dir():
        if shards := find_shards(path):
            return name, read_parquet(path, shards, label_column=label_column), look
        _only_parquet(data, label_column)
        return name, read_folder(path), look
    _only_parquet(data, label_column)
    if path.is_file() and path.suffix.lower() == ".npz":
        return path.stem, read_npz(path), look
    if path.exists():
        raise DataError(
            f"{path}: not a folder and not an .npz; data is a name ({' '.join(NAMED)}), a folder or an .npz"
        )
    raise DataError(_not_found(data, path))


def _only_parquet(data: str, label_column: str | None) -> None:
    if label_column is not None:
        raise DataError(f"label_column: {data} has no columns; only folders of parquet shards do. Leave it out")


def _not_found(data: str, path: Path) -> str:
    try:
        siblings = [str(path.parent / name) for name in os.listdir(path.parent)]
    except OSError:
        siblings = []
    close = difflib.get_close_matches(data.lower(), [*NAMED, *siblings], n=1, cutoff=0.6)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"{data}: no such name, folder or file{hint}; known names are {' '.join(NAMED)}"


def _without_bad(name: str, source: Source, seen: Survey, on_bad_image: str) -> tuple[Source, tuple[str, ...]]:
    used = np.concatenate(list(source.parts.values()))
    bad = used[seen["bad"][used]]
    if not len(bad):
        return source, ()
    skipped = tuple(source.store.where(int(row)) for row in bad)
    if on_bad_image == "stop":
        others = f". Others: {listed(skipped[1:], 9)}" if len(bad) > 1 else ""
        raise DataError(
            f"{name}: {len(bad)} of {len(used)} images cannot be read. {_why(source, int(bad[0]))}{others}. Repair or"
            " remove them, or leave them out with on_bad_image='skip' (`on_bad_image` skip)"
        )
    parts = {part: rows[~seen["bad"][rows]] for part, rows in source.parts.items()}
    return Source(source.store, source.labels, source.classes, parts), skipped


def _why(source: Source, row: int) -> str:
    from transnet.data.decode import decode_image

    try:
        decode_image(source.store.encoded(row), check=True)  # type: ignore[attr-defined]
    except DataError as error:
        return f"The first is {source.store.where(row)}: {error}"
    return f"The first is {source.store.where(row)}, which could be read just now; start again"


def _cut_test(name: str, source: Source, seen: Survey) -> dict[str, Rows]:
    if "test" in source.parts:
        return source.parts
    rows = source.parts["train"]
    labels = source.labels[rows]
    for label in np.unique(labels):
        if (labels == label).sum() < 2:
            raise DataError(
                f"{name}: class {source.classes[label]!r} has one image, but one for training and one for the"
                " test are needed; add images, or a test/ folder"
            )
    test = cut(labels, seen["sha"][rows], TEST_FRACTION, _TEST_SEED)
    return {**source.parts, "train": rows[~test], "test": rows[test]}


def _cut_val(
    name: str, parts: dict[str, Rows], source: Source, seen: Survey, *, fraction: float, seed: int
) -> dict[str, Rows]:
    if not fraction:
        return parts
    if "val" in parts:
        raise DataError(f"{name}: has a validation set of its own; leave val_fraction (`val_fraction`) out")
    rows = parts["train"]
    # Apart from the cut of the test set, which for the same seed would order the images the same way.
    val = cut(source.labels[rows], seen["sha"][rows], fraction, f"val {seed}")
    if not val.any():
        raise DataError(f"{name}: no class has two training images, so none can be kept for validation")
    return {"train": rows[~val], "val": rows[val], "test": parts["test"]}


def _cut_train(parts: dict[str, Rows], source: Source, seen: Survey, *, fraction: float, seed: int) -> dict[str, Rows]:
    if fraction == 1:
        return parts
    rows = parts["train"]
    labels = source.labels[rows]
    alone = np.bincount(labels)[labels] == 1  # without its only image a class could not be trained
    return {**parts, "train": rows[cut(labels, seen["sha"][rows], fraction, f"train {seed}") | alone]}


def _check_classes(name: str, source: Source, parts: dict[str, Rows]) -> None:
    if len(source.classes) < 2:
        raise DataError(f"{name}: only one class, {source.classes[0]!r}; a classifier needs two")
    for part, rows in parts.items():
        if not len(rows):
            raise DataError(f"{name}: no images are left in the {part} part")
    trained = set(np.unique(source.labels[parts["train"]]).tolist())
    if missing := [source.classes[i] for i in range(len(source.classes)) if i not in trained]:
        have = "1 class has" if len(missing) == 1 else f"{len(missing)} classes have"
        raise DataError(f"{name}: {have} no training images, among them {missing[0]!r}")


def _is_colourless(seen: Survey) -> bool:
    """Whether all images are grey, be it that some are stored as RGB: each channel then has the same moments."""
    moments = np.concatenate([seen["mean"], seen["square"]])
    return bool((abs(moments - moments[:, :1]) < 1e-9).all())  # sums of thousands of values round in their last digits


def _look(look: Look | None, seen: Survey, image_size: int | None) -> tuple[Look, int]:
    """How the images are shown, and at what side they are stored."""
    if look is None:
        sides = np.minimum(seen["height"], seen["width"])
        side = int(sides[0])
        small = side <= _SMALL and bool((seen["height"] == side).all() and (seen["width"] == side).all())
        flip = not _is_colourless(seen)
        look = Look(side, side // 8, flip) if small else Look(min(224, int(np.median(sides))), None, flip)
    side = image_size or look.image_size
    if look.pad is None:
        return Look(side, None, look.flip), round(side * 256 / 224)
    return Look(side, round(look.pad * side / look.image_size), look.flip), side
