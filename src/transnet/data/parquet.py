"""Folders of parquet shards as Hugging Face's ``datasets`` writes them."""

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from transnet.data.cache import cache_folder, cached
from transnet.data.source import SPLIT_NAMES, PackedStore, Rows, Source, class_names
from transnet.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Features = dict[str, dict[str, object]]  # Hugging Face's metadata of each column
_IMAGE_NAMES = ("image", "img")
_LABEL_NAMES = ("label", "fine_label", "labels", "class", "target")
_ONE_OF_MANY = re.compile(r"(.*-)(\d+)-of-(\d+)")


def find_shards(root: Path) -> list[Path]:
    """The ``.parquet`` files of a folder, or of the ``data/`` in it; none in another kind of folder."""
    for folder in (root, root / "data"):
        if shards := sorted(path for path in folder.glob("*.parquet") if not path.name.startswith(".")):
            return shards
    return []


def read_parquet(root: Path, shards: list[Path], *, label_column: str | None) -> Source:
    """Read images and labels from shards whose names begin with ``train``, ``validation`` or ``test``.

    The encoded images are copied into the cache folder, since single rows of a parquet file cannot be read. A test
    split whose labels are all −1 (withheld) is left out.
    """
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DataError(f"{root}: reading parquet needs pyarrow; pip install pyarrow") from error

    split_of = _splits(root, shards)
    _check_complete(root, shards)
    files: dict[Path, pq.ParquetFile] = {}
    for path in shards:
        with _reading(path):
            files[path] = pq.ParquetFile(path)
            schema = files[shards[0]].schema_arrow
            if files[path].schema_arrow.names != schema.names:
                raise DataError(f"{path}: its columns differ from those of {shards[0].name}")
    if not sum(file.metadata.num_rows for file in files.values()):
        raise DataError(f"{root}: no images, all shards are empty")
    features = _features(schema)
    image = _image_column(root, schema)
    label = _label_column(root, schema, features, label_column)
    values: list[object] = []
    split_of_row: list[str] = []
    for path, file in files.items():
        values += itertools.chain.from_iterable(_read(path, file, label))
        split_of_row += [split_of[path]] * file.metadata.num_rows
    store = _unpack(root, files, image)

    labels, names = _labels(root, label, values, features)
    splits = {split: np.flatnonzero(np.array(split_of_row) == split) for split in dict.fromkeys(split_of.values())}
    if "test" in splits and (labels[splits["test"]] == -1).all():
        del splits["test"]
    classes = class_names(f"{root}: column {label!r}", labels[np.concatenate(list(splits.values()))], names)
    return Source(store, labels, classes, splits)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn pyarrow's errors into one that names the shard."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: this shard cannot be read ({error}); fetch it again") from error


def _read(path: Path, file: "pq.ParquetFile", column: str) -> Iterator[list[object]]:
    """Read a column, of images the encoded bytes, in parts."""
    found = 0
    with _reading(path):
        for batch in file.iter_batches(batch_size=1024, columns=[column]):
            values = batch.column(0)
            if hasattr(values, "field"):
                values = values.field("bytes")
            found += len(values)
            yield values.to_pylist()
    if found != (rows := file.metadata.num_rows):
        raise DataError(f"{path}: this shard is damaged ({found} of {rows} rows are found); fetch it again")


def _unpack(root: Path, files: dict[Path, "pq.ParquetFile"], image: str) -> PackedStore:
    """Copy the encoded images, and the position at which each ends, into the cache."""
    stats = zip(files, map(Path.stat, files))
    states = [(path.name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for path, stat in stats]
    key = hashlib.sha256(f"packed {image} {root.resolve()} {states}".encode()).hexdigest()
    lengths = [(str(path), file.metadata.num_rows) for path, file in files.items()]

    def encoded() -> Iterator[list[bytes]]:
        for path, file in files.items():
            for part in _read(path, file, image):
                yield [row if isinstance(row, bytes) else b"" for row in part]

    def fill_ends(path: Path) -> None:
        np.load(path, mmap_mode="r+")[:] = np.cumsum([len(row) for part in encoded() for row in part])

    def fill(path: Path) -> None:
        out, end = np.load(path, mmap_mode="r+"), 0
        for part in encoded():
            joined = b"".join(part)
            out[end : end + len(joined)] = np.frombuffer(joined, np.uint8)
            end += len(joined)

    ends = cached(f"{key}-ends", (sum(rows for _, rows in lengths),), np.int64, fill_ends)
    if ends[-1] == 0:
        raise DataError(f"{root}: column {image!r} holds no bytes, only paths; write the images into the shards")
    packed = cached(key, (int(ends[-1]),), np.uint8, fill)
    assert isinstance(packed, np.memmap)
    return PackedStore(cache_folder() / f"{key}.npy", int(packed.offset), np.array(ends), key, lengths)


def _splits(root: Path, shards: list[Path]) -> dict[Path, str]:
    splits = {path: SPLIT_NAMES.get(re.split(r"[-_.]", path.name.lower())[0], "") for path in shards}
    if not any(splits.values()):
        return dict.fromkeys(shards, "train")
    unknown = [path.name for path, split in splits.items() if not split]
    if unknown or "train" not in splits.values():
        found = unknown[0] if unknown else shards[0].name
        raise DataError(f"{root}: found {found}; shards begin with train-, and others with validation- or test-")
    return splits


def _check_complete(root: Path, shards: list[Path]) -> None:
    """Refuse a folder without all of its numbered shards: training would work, and only the results would be wrong."""
    numbered = {name.groups() for path in shards if (name := _ONE_OF_MANY.match(path.name))}
    for (before, count), present in Counter((before, count) for before, _, count in numbered).items():
        if (missing := int(count) - present) > 0:
            raise DataError(
                f"{root}: {missing} of the {int(count)} shards {before}…-of-{count} are missing; fetch them, or give"
                " the others names without numbers if they are all there should be"
            )


def _features(schema: "pa.Schema") -> Features:
    try:
        found = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: its for name, its in found.items() if isinstance(its, dict)}
    except (ValueError, KeyError, TypeError, AttributeError):  # none, or of another form
        return {}


def _choose_column(found: Sequence[str], preferred: Sequence[str]) -> str | None:
    """The only column found, or else the first of the preferred names among them."""
    return found[0] if len(found) == 1 else next((name for name in preferred if name in found), None)


def _image_column(root: Path, schema: "pa.Schema") -> str:
    from pyarrow import types

    structs = [
        field.name for field in schema if types.is_struct(field.type) and "bytes" in {f.name for f in field.type}
    ]
    binary = [field.name for field in schema if types.is_binary(field.type) or types.is_large_binary(field.type)]
    found = structs or binary
    if column := _choose_column(found, _IMAGE_NAMES):
        return column
    raise DataError(
        f"{root}: {len(found) or 'no'} columns of images among {' '.join(schema.names)}; expected is one of bytes, or"
        " of structs with the field bytes, called image or img if there are several"
    )


def _label_column(root: Path, schema: "pa.Schema", features: Features, given: str | None) -> str:
    if given is not None:
        if given in schema.names:
            return given
        raise DataError(f"{root} has no column {given!r}; it has {' '.join(schema.names)}", field="label_column")
    found = [name for name in schema.names if features.get(name, {}).get("_type") == "ClassLabel"] or schema.names
    if column := _choose_column(found, _LABEL_NAMES):
        return column
    raise DataError(f"{root} has several columns that may hold labels: {' '.join(found)}", field="label_column")


def _labels(root: Path, column: str, values: list[object], features: Features) -> tuple[Rows, list[str] | None]:
    """The labels as numbers, and the classes' names if there are any."""
    kinds = {type(value) for value in values}
    if kinds == {str}:
        classes, numbers = np.unique(np.array(values), return_inverse=True)
        return numbers.astype(np.int64), classes.tolist()
    if kinds != {int}:
        found = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise DataError(
            f"{root}: column {column!r} holds {found}; labels are whole numbers or strings, all of one kind and none"
            " missing"
        )
    try:
        labels = np.array(values, np.int64)
    except OverflowError as error:
        raise DataError(f"{root}: column {column!r}: some labels are out of range") from error
    names = features.get(column, {}).get("names")
    return labels, names if isinstance(names, list) else None
