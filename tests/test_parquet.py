"""Parquet shards as Hugging Face writes them."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_files import encoded, noise
from transnet.data import open_data
from transnet.errors import DataError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

CLASS_LABEL = {"_type": "ClassLabel", "names": ["cat", "dog"]}


def shard(
    path: Path,
    seeds: range,
    *,
    label: str = "label",
    labels: list[Any] | None = None,
    features: dict[str, Any] | None = None,
    **more: list[Any],
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {
        "img": [{"bytes": encoded(noise(seed)), "path": None} for seed in seeds],
        label: [seed % 2 for seed in seeds] if labels is None else labels,
        **more,
    }
    table = pa.table(columns)
    if features is not None:
        info = {"info": {"features": {"img": {"_type": "Image"}, **features}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, path, row_group_size=3)


def test_shards_are_read_in_order_with_the_names_of_the_schema(tmp_path: Path) -> None:
    features = {"label": CLASS_LABEL}
    for i in range(2):
        shard(tmp_path / f"train-0000{i}-of-00002.parquet", range(8 * i, 8 * i + 8), features=features)
    shard(tmp_path / "test-00000-of-00001.parquet", range(100, 104), features=features)
    data = open_data(str(tmp_path))
    assert data.classes == ("cat", "dog")
    assert data.train.labels.tolist() == [0, 1] * 8
    assert np.array_equal(data.train.decode(11), noise(11))
    assert np.array_equal(data.test.resident((12, 12)).numpy(), np.stack([noise(s) for s in range(100, 104)]))
    assert data.train.where(11).endswith("train-00001-of-00002.parquet, row 3")


def test_lone_validation_is_the_test_set_and_data_folder_is_found(tmp_path: Path) -> None:
    shard(tmp_path / "data" / "train-0.parquet", range(8))
    shard(tmp_path / "data" / "validation-0.parquet", range(100, 104))
    data = open_data(str(tmp_path))
    assert (len(data.train), len(data.test), data.val) == (8, 4, None)


def test_unlabelled_test_part_is_left_out(tmp_path: Path) -> None:
    shard(tmp_path / "train-0.parquet", range(8))
    shard(tmp_path / "validation-0.parquet", range(100, 104))
    shard(tmp_path / "test-0.parquet", range(200, 206), labels=[-1] * 6)
    data = open_data(str(tmp_path))
    assert (len(data.train), len(data.test), data.val) == (8, 4, None)


def test_shards_without_a_split_are_split(tmp_path: Path) -> None:
    shard(tmp_path / "0000.parquet", range(20))
    data = open_data(str(tmp_path))
    assert (len(data.train), len(data.test)) == (16, 4)


def test_label_column(tmp_path: Path) -> None:
    features = {"coarse": CLASS_LABEL, "deep": {"_type": "ClassLabel", "names": ["a", "b", "c"]}}
    shard(tmp_path / "train-0.parquet", range(12), label="coarse", features=features, deep=[0, 1, 2] * 4)
    with pytest.raises(DataError, match=r"coarse deep"):
        open_data(str(tmp_path))
    assert open_data(str(tmp_path), label_column="deep").classes == ("a", "b", "c")
    with pytest.raises(DataError, match="no column 'depth'"):
        open_data(str(tmp_path), label_column="depth")


def test_strings_are_classes(tmp_path: Path) -> None:
    shard(tmp_path / "train-0.parquet", range(12), labels=["dog", "cat", "emu"] * 4)
    assert open_data(str(tmp_path)).classes == ("cat", "dog", "emu")


def test_label_out_of_range_is_refused(tmp_path: Path) -> None:
    shard(tmp_path / "train-0.parquet", range(4), labels=[0, 1, 2, 0], features={"label": CLASS_LABEL})
    with pytest.raises(DataError, match="column 'label': label 2 is out of range; 2 classes"):
        open_data(str(tmp_path))


@pytest.mark.parametrize(
    ("labels", "wrong"),
    [
        ([10**12 + i for i in range(4)], 10**12),
        ([7, 0, 1, 10**10], 7),
        ([0, 1, 2, 4], 4),
        ([0, 1, -1, 0], -1),
        ([-1] * 4, -1),
    ],
)
def test_numbers_that_are_no_labels_are_refused(tmp_path: Path, labels: list[int], wrong: int) -> None:
    shard(tmp_path / "train-0.parquet", range(4), label="id", labels=labels)
    with pytest.raises(DataError, match=f"column 'id': label {wrong} is out of range; 4 images have labels in 0…3"):
        open_data(str(tmp_path), label_column="id")


def test_number_of_more_than_63_bits_is_refused(tmp_path: Path) -> None:
    shard(tmp_path / "train-0.parquet", range(4), labels=pa.array([0, 1, 0, 2**63], pa.uint64()))
    with pytest.raises(DataError, match="some labels are out of range"):
        open_data(str(tmp_path))


def test_missing_label_is_refused(tmp_path: Path) -> None:
    shard(tmp_path / "train-0.parquet", range(4), labels=[0, 1, None, 0])
    with pytest.raises(DataError, match="none missing"):
        open_data(str(tmp_path))


def test_bad_image_is_named_or_skipped(tmp_path: Path) -> None:
    path = tmp_path / "train-0.parquet"
    shard(path, range(12))
    table = pq.read_table(path).to_pydict()
    table["img"][7] = {"bytes": table["img"][7]["bytes"][:100], "path": None}
    table["img"][9] = {"bytes": None, "path": "gone.png"}
    pq.write_table(pa.table(table), path)
    with pytest.raises(DataError, match=r"2 of 12 images.*train-0\.parquet, row 7"):
        open_data(str(tmp_path))
    data = open_data(str(tmp_path), on_bad_image="skip")
    assert data.skipped == (f"{path}, row 7", f"{path}, row 9")
    assert len(data.train) + len(data.test) == 10


def test_truncated_shard_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train-0.parquet"
    shard(path, range(12))
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DataError, match="fetch it again"):
        open_data(str(tmp_path))


def test_shard_damaged_inside_is_named(tmp_path: Path) -> None:
    for i in range(2):
        shard(tmp_path / f"train-{i}.parquet", range(100 * i, 100 * i + 40))
    path = tmp_path / "train-1.parquet"
    whole = path.read_bytes()
    hints = set()
    for start in range(4, len(whole) - 3000, 500):
        path.write_bytes(whole[:start] + bytes(3000) + whole[start + 3000 :])
        with pytest.raises(DataError) as caught:
            open_data(str(tmp_path))
        assert str(path) in str(caught.value)
        assert "cache" not in str(caught.value)
        hints.add("fetch it again" in str(caught.value))
    assert True in hints


def test_changed_shard_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "train-0.parquet"
    shard(path, range(12))
    before = open_data(str(tmp_path))
    shard(path, range(50, 62))
    assert open_data(str(tmp_path)).fingerprint != before.fingerprint


def test_missing_image_column_is_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": [0, 1], "text": ["a", "b"]}), tmp_path / "train-0.parquet")
    with pytest.raises(DataError, match="no columns of images among label text"):
        open_data(str(tmp_path))


def test_shard_with_an_unknown_name_is_refused(tmp_path: Path) -> None:
    shard(tmp_path / "train-0.parquet", range(4))
    shard(tmp_path / "unsupervised-0.parquet", range(4))
    with pytest.raises(DataError, match="unsupervised-0"):
        open_data(str(tmp_path))


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        (["train-00002-of-00004", "train-00003-of-00004"], "2 of the 4 shards train-….*"),
        (["train-00000-of-00002-aaa", "train-00000-of-00002-bbb"], "1 of the 2 shards train-….*"),
        (["train-0-of-1", "test-1-of-3", "test-3-of-3"], "1 of the 3 shards test-…"),
        (["train-00000-of-99999999999-a1b2"], "99999999998 of the 99999999999 shards"),
    ],
)
def test_missing_shards_are_named(tmp_path: Path, there: list[str], missing: str) -> None:
    for i, name in enumerate(there):
        shard(tmp_path / f"{name}.parquet", range(8 * i, 8 * i + 8))
    with pytest.raises(DataError, match=missing):
        open_data(str(tmp_path))


def test_shards_counted_from_one_are_complete(tmp_path: Path) -> None:
    for i in (1, 2):
        shard(tmp_path / f"train-{i}-of-2-c0ffee.parquet", range(8 * i, 8 * i + 8))
    data = open_data(str(tmp_path))
    assert len(data.train) + len(data.test) == 16


def test_missing_pyarrow_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard(tmp_path / "train-0.parquet", range(4))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match="pip install pyarrow"):
        open_data(str(tmp_path))
