import json
from pathlib import Path

import pytest

from transnet.errors import FileError
from transnet.runs.folder import Run
from transnet.runs.records import EpochEntry, RunSettings, Score, Scores, decode, encode

RESULTS = sorted(Path(__file__).parents[1].glob("results/*/runs/*/result.json"))
ENTRY = EpochEntry(
    epoch=1, step=5, lr=0.1, loss=(float("nan"), 2.0), accuracy=(0.5, 0.5), seconds=1.0, images_per_second=9.0,
    test=Scores(None, Score(0.5, 1.0, 10), ()),
)  # fmt: skip


def test_every_published_run_can_be_read():
    assert RESULTS
    for path in RESULTS:
        run = Run(path.parent)
        assert run.settings().data.fingerprint == run.result().config.data.fingerprint
        assert all(entry.epoch for entry in run.metrics())


def test_a_record_survives_json_and_a_loss_that_is_not_finite_becomes_null():
    content = json.loads(json.dumps(encode(ENTRY), allow_nan=False))
    assert content["loss"] == [None, 2.0]
    assert decode(EpochEntry, content, "here").test == ENTRY.test


@pytest.mark.parametrize(
    ("change", "entry"),
    [
        ({"epoch": "one"}, "epoch is 'one'"),
        ({"loss": [1.0, "high"]}, "loss[1] is 'high'"),
        ({"test": {"full": {"accuracy": 1, "loss": 1, "n": 1.5}, "pruned": None, "heads": []}}, "test.full.n is 1.5"),
        ({"step": None}, "step is None"),
    ],
)
def test_an_error_names_the_file_and_the_entry(change, entry):
    with pytest.raises(FileError) as caught:
        decode(EpochEntry, {**encode(ENTRY), **change}, "metrics.jsonl")
    assert str(caught.value).startswith(f"metrics.jsonl: {entry}")


def test_an_error_in_the_settings_names_the_setting():
    with pytest.raises(FileError, match=r"train\.lr is -1"):
        decode(RunSettings, {"train": {"data": "x", "out": "x", "lr": -1}, "data": {}}, "config.json")
