"""Folders of parquet shards as Hugging Face's ``datasets`` writes them."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from transnet.data.cache import cache_folder, cached
from transnet.data.errors import DataError
from transnet.data.parts import PART_NAMES, Rows, Source, settle_parts
from transnet.data.stores import PackedStore

_IMAGE_NAMES = ("image", "img")
_LABEL_NAMES = ("label", "fine_label", "labels", "class", "target")


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
        DataError: where pyarrow is not installed, a shard is damaged or a column is not found.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DataError(f"{root}: reading parquet needs pyarrow; pip install 'transnet[parquet]'") from error

    parts = _parts(root, shards)
    try:
        files = [pq.ParquetFile(path) for path in shards]
        features = _features(files[0])
        image = _image_column(root, files[0].schema_arrow, features)
        label = _label_column(root, files[0].schema_arrow, features, label_column)
        for path, file in zip(shards, files):
            if file.schema_arrow.names != files[0].schema_arrow.names:
                raise DataError(f"{path}: its columns differ from those of {shards[0].name}")
        labels = [value for file in files for value in file.read(columns=[label]).column(0).to_pylist()]
        lengths = [file.metadata.num_rows for file in files]
        store = _unpack(root, shards, files, image)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{root}: a shard cannot be read ({error}); fetch it again") from error

    rows: dict[str, Rows] = {}
    start = 0
    for path, length in zip(shards, lengths):
        rows[parts[path]] = np.append(rows.get(parts[path], np.empty(0, np.int64)), np.arange(start, start + length))
        start += length
    every, classes = _names(root, label, labels, features)
    if "test" in rows and (every[rows["test"]] == -1).all():
        del rows["test"]
    used = every[np.concatenate(list(rows.values()))]
    if used.min() < 0 or used.max() >= len(classes):
        bad = used[(used < 0) | (used >= len(classes))][0]
        raise DataError(f"{root}: label {bad} in column {label!r} is out of range; there are {len(classes)} classes")
    return Source(store, every, classes, settle_parts(rows))


def _unpack(root: Path, shards: list[Path], files: list[Any], image: str) -> PackedStore:
    """Copy the encoded images, and where each of them ends, into the cache."""
    stats = [(path.name, (stat := path.stat()).st_size, stat.st_mtime_ns, stat.st_ctime_ns) for path in shards]
    key = hashlib.sha256(f"packed {image} {root.resolve()} {stats}".encode()).hexdigest()
    rows = sum(file.metadata.num_rows for file in files)
    if not rows:
        raise DataError(f"{root}: no images, all shards are empty")

    def fill_ends(path: Path) -> None:
        lengths = [len(row or b"") for file in files for part in _encoded(file, image) for row in part]
        np.load(path, mmap_mode="r+")[:] = np.cumsum(lengths)

    ends = cached(f"{key}-ends", (rows,), np.int64, fill_ends)
    if ends[-1] == 0:
        raise DataError(f"{root}: column {image!r} holds no bytes, only paths; write the images into the shards")

    def fill(path: Path) -> None:
        out = np.load(path, mmap_mode="r+")
        at = 0
        for file in files:
            for part in _encoded(file, image):
                joined = b"".join(row or b"" for row in part)
                out[at : at + len(joined)] = np.frombuffer(joined, np.uint8)
                at += len(joined)
        out.flush()

    packed = cached(key, (int(ends[-1]),), np.uint8, fill)
    assert isinstance(packed, np.memmap)
    names = [(str(path), file.metadata.num_rows) for path, file in zip(shards, files)]
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


def _encoded(file: Any, column: str) -> Any:
    for batch in file.iter_batches(batch_size=1024, columns=[column]):
        values = batch.column(0)
        if hasattr(values, "field"):
            values = values.field("bytes")
        yield values.to_pylist()


def _features(file: Any) -> dict[str, Any]:
    metadata = (file.schema_arrow.metadata or {}).get(b"huggingface", b"{}")
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
        f"{root}: cannot tell which column holds the labels; name one with label_column (--label-column):"
        f" {' '.join(labels or schema.names)}"
    )


def _names(root: Path, label: str, values: list[Any], features: dict[str, Any]) -> tuple[Rows, tuple[str, ...]]:
    if all(isinstance(value, str) for value in values):
        classes = tuple(sorted(set(values)))
        number = {name: i for i, name in enumerate(classes)}
        return np.array([number[value] for value in values], np.int64), classes
    if not all(isinstance(value, int) for value in values):
        raise DataError(
            f"{root}: column {label!r} holds {type(values[0]).__name__}; labels are numbers or strings, none missing"
        )
    labels = np.array(values, np.int64)
    names = features.get(label, {}).get("names")
    if isinstance(names, list):
        return labels, tuple(map(str, names))
    return labels, tuple(map(str, range(int(labels.max()) + 1)))
