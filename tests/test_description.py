import dataclasses
import json

import pytest

from transnet.errors import TransnetError
from transnet.model import TransNet
from transnet.runs.description import INPUT, LONGEST_CONFIG, PREPROCESSING, Description, of_export, of_run
from transnet.runs.files import read_json

GOOD = Description(
    kind="full", model="resnet8-small", transforms=("r0", "r1"), classes=("cat", "dog"), channels=1, image_size=8,
    stored_size=9, mean=(0.5,), std=(0.25,),
)  # fmt: skip


def test_a_description_survives_json():
    assert of_export(json.loads(json.dumps(GOOD.to_dict())), "here") == GOOD


def test_it_builds_the_full_and_the_pruned_network():
    net = GOOD.build()
    assert isinstance(net, TransNet)
    assert net.transforms == ("r0", "r1")
    pruned = dataclasses.replace(GOOD, kind="pruned", transforms=("r0",)).build()
    assert pruned.fc.out_features == 2


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("schema", 2, "1 is what this version reads"),
        ("kind", "whole", "known are full pruned"),
        ("model", None, "the name of a backbone is needed"),
        ("transforms", "r0,r9", "known are r0 r1"),
        ("transforms", ["r0"] * 65, "up to 64"),
        ("classes", "cat", "a list of up to 100,000 names"),
        ("classes", [1, 2], "every class needs a name"),
        ("channels", 0, "from 1 to 4"),
        ("channels", True, "from 1 to 4"),
        ("image_size", 10**9, "from 1 to 1024"),
        ("stored_size", 4, "from 8 to 2048"),
        ("mean", [0.5, 0.5], "a list of 1 numbers"),
        ("mean", [float("nan")], "between -10 and 10"),
        ("std", [0.0], "between 0.000001 and 10"),
        ("heads", ["separate"], "known are separate shared"),
        ("bn", "none", "known are joint separate"),
        ("preprocessing", {**PREPROCESSING, "interpolation": "nearest"}, "applies .*'bilinear'"),
        ("preprocessing", None, "applies .*'bilinear'"),
        ("input", {**INPUT, "layout": "NHWC"}, "applies .*'NCHW'"),
        ("fold", "yes", "known are True False"),
    ],
)
def test_a_wrong_entry_is_named_with_what_would_work(key, value, message):
    with pytest.raises(TransnetError, match=f"here: {key} is .*{message}"):
        of_export({**GOOD.to_dict(), key: value}, "here")


def test_a_run_needs_both_its_parts():
    with pytest.raises(TransnetError, match="'train' and 'data' are needed"):
        of_run({"schema": 1, "train": []}, "here")


def test_json_that_is_too_long_too_deep_or_no_object_is_refused(tmp_path):
    path = tmp_path / "config.json"
    with pytest.raises(TransnetError, match="does not exist; give one"):
        read_json(path, "give one")
    path.write_text("[" * 100_000)
    with pytest.raises(TransnetError, match="cannot be read"):
        read_json(path, "")
    path.write_text("[1]")
    with pytest.raises(TransnetError, match="it holds no object"):
        read_json(path, "")
    with open(path, "wb") as file:
        file.truncate(LONGEST_CONFIG + 1)
    with pytest.raises(TransnetError, match="bytes; at most"):
        read_json(path, "")
