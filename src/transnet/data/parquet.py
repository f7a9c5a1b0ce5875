"""Folders of parquet shards as Hugging Face's ``datasets`` writes them."""

import hashlib
import itertools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from transnet.data.cache import cache_folder, cached
from transnet.data.source import PART_NAMES, Rows, Source, class_names, settle_parts
from transnet.data.stores import PackedStore
from transnet.errors import DataError

_IMAGE_NAMES = ("image", "img")
_LABEL_NAMES = ("label", "fine_label", "labels", "class", "target")
_ONE_OF_MANY = re.compile(r"(?P<before>.*-)(?P<number>\d+)-of-(?P<all>\d+)")


def find_shards(root: Path) -> list[Path]:
    """The ``.parquet`` files of a folder, or of the ``data/`` in it; none in another kind of folder."""
    for folder in (root, root / "data"):
        if shards := sorted(path for path in folder.glob("*.parquet") if not path.name.startswith(".")):
            return shards
    return []


def read_parquet(root: Path, shards: list[Path], *, label_column: str | None) -> Source:
    """Read images and labels from shards whose names begin with ``train``, ``validation`` or ``test``.

    The encoded images are copied into the cache folder once, since a parquet file cannot be read at a single
    row. Class names come from the schema. A test part whose labels are all −1 (withheld) is left out.

    Args:
        root: the folder, for messages.
        shards: its files, see `find_shards`.
        label_column: the column of labels; None finds it.

    Raises:
        DataError: where pyarrow is not installed, a shard is missing or damaged, a column is not found or a label is
            out of range.
    """
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DataError(f"{root}: reading parquet needs pyarrow; pip install pyarrow") from error

    parts = _parts(root, shards)
    _check_complete(root, shards)
    files: dict[Path, Any] = {}
    for path in shards:
        with _reading(path):
            files[path] = pq.ParquetFile(path)
    with _reading(shards[0]):
        schema = files[shards[0]].schema_arrow
    features = _features(schema)
    image = _image_column(root, schema, features)
    label = _label_column(root, schema, features, label_column)
    values: list[Any] = []
    for path, file in files.items():
        with _reading(path):
            if file.schema_arrow.names != schema.names:
                raise DataError(f"{path}: its columns differ from those of {shards[0].name}")
            found = file.read(columns=[label]).column(0).to_pylist()
        _check_length(path, file, len(found))
        values += found
    store = _unpack(root, files, image)

    rows: dict[str, Rows] = {}
    start = 0
    for path, file in files.items():
        length = file.metadata.num_rows
        rows[parts[path]] = np.append(rows.get(parts[path], np.empty(0, np.int64)), np.arange(start, start + length))
        start += length
    every, names = _names(root, label, values, features)
    if "test" in rows and (every[rows["test"]] == -1).all():
        del rows["test"]
    classes = class_names(f"{root}: column {label!r}", every[np.concatenate(list(rows.values()))], names)
    return Source(store, every, classes, settle_parts(rows))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What goes wrong in a shard is said of that shard."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: this shard cannot be read ({error}); fetch it again") from error


def _check_length(path: Path, file: Any, found: int) -> None:
    if found != (rows := file.metadata.num_rows):
        raise DataError(f"{path}: this shard is damaged ({found} of {rows} rows are found); fetch it again")


def _unpack(root: Path, files: dict[Path, Any], image: str) -> PackedStore:
    """Copy the encoded images, and where each of them ends, into the cache."""
    stats = []
    for path in files:
        with _reading(path):
            stat = path.stat()
        stats.append((path.name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
    key = hashlib.sha256(f"packed {image} {root.resolve()} {stats}".encode()).hexdigest()
    rows = sum(file.metadata.num_rows for file in files.values())
    if not rows:
        raise DataError(f"{root}: no images, all shards are empty")

    def fill_ends(path: Path) -> None:
        lengths = [len(row or b"") for part in _encoded(files, image) for row in part]
        np.load(path, mmap_mode="r+")[:] = np.cumsum(lengths)

    ends = cached(f"{key}-ends", (rows,), np.int64, fill_ends)
    if ends[-1] == 0:
        raise DataError(f"{root}: column {image!r} holds no bytes, only paths; write the images into the shards")

    def fill(path: Path) -> None:
        out = np.load(path, mmap_mode="r+")
        at = 0
        for part in _encoded(files, image):
            joined = b"".join(row or b"" for row in part)
            out[at : at + len(joined)] = np.frombuffer(joined, np.uint8)
            at += len(joined)

    packed = cached(key, (int(ends[-1]),), np.uint8, fill)
    assert isinstance(packed, np.memmap)
    names = [(str(path), file.metadata.num_rows) for path, file in files.items()]
    return PackedStore(cache_folder() / f"{key}.npy", int(packed.offset), np.array(ends), key, names)


def _parts(root: Path, shards: list[Path]) -> dict[Path, str]:
    parts = {path: PART_NAMES.get(re.split(r"[-_.]", path.name.lower())[0]) for path in shards}
    if not any(parts.values()):
        return dict.fromkeys(shards, "train")
    if "train" not in parts.values():
        raise DataError(f"{root}: no shard's name begins with train-; found {shards[0].name}")
    if strange := [path.name for path, part in parts.items() if part is None]:
        raise DataError(
            f"{root}: {strange[0]} begins with none of train-, validation-, test-; rename it or move it away"
        )
    return {path: part for path, part in parts.items() if part is not None}


def _check_complete(root: Path, shards: list[Path]) -> None:
    """Half a data set trains as well as a whole one, and nothing but its results would tell."""
    found: dict[tuple[str, str], set[int]] = {}
    for path in shards:
        if name := _ONE_OF_MANY.match(path.name):
            found.setdefault((name["before"], name["all"]), set()).add(int(name["number"]))
    for (before, number), there in found.items():
        if (missing := int(number) - len(there)) > 0:
            first = next(n for n in itertools.count(int(number) in there) if n not in there)  # from 0 or from 1
            raise DataError(
                f"{root}: {missing} of the {int(number)} shards {before}…-of-{number} {'is' if missing == 1 else 'are'}"
                f" missing, the first is {before}{first:0{len(number)}}-of-{number}; fetch what is missing, or give the"
                " others names without numbers where they are meant to be all"
            )


def _encoded(files: dict[Path, Any], column: str) -> Iterator[list[bytes | None]]:
    for path, file in files.items():
        found = 0
        with _reading(path):
            for batch in file.iter_batches(batch_size=1024, columns=[column]):
                values = batch.column(0)
                if hasattr(values, "field"):
                    values = values.field("bytes")
                found += len(values)
                yield values.to_pylist()
        _check_length(path, file, found)


def _features(schema: Any) -> dict[str, Any]:
    metadata = (schema.metadata or {}).get(b"huggingface", b"{}")
    try:
        features = json.loads(metadata).get("info", {}).get("features", {})
    except ValueError:
        return {}
    return {name: value for name, value in features.items() if isinstance(value, dict)}


def _image_column(root: Path, schema: Any, features: dict[str, Any]) -> str:
    from pyarrow import types

    found = [
        field.name
        for field in schema
        if (types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0)
        or (features.get(field.name, {}).get("_type") == "Image" and types.is_binary(field.type))
        or (field.name in _IMAGE_NAMES and (types.is_binary(field.type) or types.is_large_binary(field.type)))
    ]
    if len(found) == 1:
        return found[0]
    if preferred := [name for name in _IMAGE_NAMES if name in found]:
        return preferred[0]
    problem = f"{len(found)} columns of images ({' '.join(found)})" if found else "no column of images"
    raise DataError(
        f"{root}: {problem} among {' '.join(schema.names)}; expected is one that holds a struct with the"
        " field bytes, called image or img where there are several"
    )


def _label_column(root: Path, schema: Any, features: dict[str, Any], given: str | None) -> str:
    if given is not None:
        if given in schema.names:
            return given
        raise DataError(f"{root}: no column {given!r} for the labels; the columns are {' '.join(schema.names)}")
    labels = [name for name in schema.names if features.get(name, {}).get("_type") == "ClassLabel"]
    if len(labels) == 1:
        return labels[0]
    if preferred := [name for name in _LABEL_NAMES if name in (labels or schema.names)]:
        return preferred[0]
    raise DataError(
        f"{root}: cannot tell which column holds the labels; name one with label_column (`label_column`):"
        f" {' '.join(labels or schema.names)}"
    )


def _names(root: Path, label: str, values: list[Any], features: dict[str, Any]) -> tuple[Rows, list[str] | None]:
    if all(isinstance(value, str) for value in values):
        classes = sorted(set(values))
        number = {name: i for i, name in enumerate(classes)}
        return np.array([number[value] for value in values], np.int64), classes
    kinds = sorted({"nothing" if value is None else type(value).__name__ for value in values})
    if kinds != ["int"]:
        raise DataError(
            f"{root}: column {label!r} holds {' and '.join(kinds)}; labels are whole numbers or strings, all of one"
            " kind and none missing"
        )
    try:
        labels = np.array(values, np.int64)
    except OverflowError as error:
        raise DataError(f"{root}: column {label!r}: label {max(values)} is out of range") from error
    names = features.get(label, {}).get("names")
    return labels, names if isinstance(names, list) else None
