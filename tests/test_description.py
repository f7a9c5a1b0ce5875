import dataclasses
import json

import pytest

from transnet.errors import FileError
from transnet.model import TransNet
from transnet.runs.config import TrainConfig
from transnet.runs.description import INPUT, PREPROCESSING, Description
from transnet.runs.records import DataDescription, RunSettings

GOOD = Description(
    kind="full", model="resnet8-small", transforms=("r0", "r1"), classes=("cat", "dog"), channels=1, image_size=8,
    stored_size=9, mean=(0.5,), std=(0.25,),
)  # fmt: skip


def test_a_description_survives_json():
    assert Description.of_export(json.loads(json.dumps(GOOD.to_dict())), "here") == GOOD


def test_a_run_has_the_description_of_its_settings():
    data = DataDescription(
        name="pets", classes=("cat", "dog"), channels=1, image_size=8, stored_size=9, mean=(0.5,), std=(0.25,)
    )
    train = TrainConfig(data="pets", out="run", model="resnet8-small", transforms="r0, r1")
    assert Description.of_run(RunSettings(train, data), "here") == GOOD


def test_it_builds_the_full_and_the_pruned_network():
    net = GOOD.build()
    assert isinstance(net, TransNet)
    assert net.transforms == ("r0", "r1")
    pruned = dataclasses.replace(GOOD, kind="pruned", transforms=("r0",)).build()
    assert pruned.fc.out_features == 2


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("schema", 2, "reads 1"),
        ("kind", "whole", "full pruned"),
        ("kind", None, ""),
        ("model", None, ""),
        ("model", "../../etc", "timm:NAME"),
        ("transforms", ["r0", "r9"], "known are r0 r1"),
        ("transforms", ["r0"] * 65, "64"),
        ("transforms", [], "1"),
        ("classes", "cat", "array"),
        ("classes", [1, 2], "str"),
        ("classes", ["x" * 1001], "1000"),
        ("channels", 0, ">= 1"),
        ("channels", True, "int"),
        ("image_size", 10**9, "<= 1024"),
        ("stored_size", 4, "at least image_size"),
        ("stored_size", 4096, "<= 2048"),
        ("mean", [0.5, 0.5], "one number for each"),
        ("mean", [float("nan")], ""),
        ("mean", [float("inf")], ""),
        ("std", [0.0], "1e-06"),
        ("std", [float("nan")], ""),
        ("heads", ["separate"], "str"),
        ("bn", "none", "joint separate"),
        ("preprocessing", {**PREPROCESSING, "interpolation": "nearest"}, "'bilinear'"),
        ("preprocessing", None, "'bilinear'"),
        ("input", {**INPUT, "layout": "NHWC"}, "'NCHW'"),
        ("fold", "yes", "bool"),
    ],
)
def test_an_error_names_the_file_the_entry_and_what_would_work(key, value, hint):
    with pytest.raises(FileError) as caught:
        Description.of_export({**GOOD.to_dict(), key: value}, "here")
    message = str(caught.value)
    assert message.startswith("here: ")
    assert key in message
    assert hint in message
    assert len(message) < 400


def test_a_pruned_model_has_one_transform():
    with pytest.raises(FileError, match="transforms"):
        Description.of_export({**GOOD.to_dict(), "kind": "pruned"}, "here")
