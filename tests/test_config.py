"""Settings: what is refused, what is kept, and what the recipes set."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from small_runs import environment
from transnet.errors import ConfigError
from transnet.runs.config import (
    FREE,
    TrainConfig,
    data_name,
    differences,
    read_config,
)
from transnet.runs.provenance import command
from transnet.runs.recipes import NAMES, default_model, settings
from transnet.runs.records import RunSettings, decode, encode


def config(**changes: Any) -> TrainConfig:
    return TrainConfig(**{"data": "digits", "out": "x", **changes})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0), ("epochs", -1), ("epochs", 1.5), ("epochs", "many"), ("epochs", True), ("batch_size", 0),
        ("image_size", 0), ("pad", -1), ("workers", -1), ("evaluate_every", -1), ("checkpoint_every", -1),
        ("seed", -1), ("seed", None), ("lr", -0.1), ("lr", float("nan")), ("lr", float("inf")), ("lr", "high"),
        ("weight_decay", -1e-4), ("momentum", 1.0), ("momentum", -0.1), ("mixup", -1), ("cutmix", float("nan")),
        ("val_fraction", 1.0), ("val_fraction", -0.1), ("train_fraction", 0.0), ("train_fraction", 1.1),
        ("label_smoothing", 1.0), ("warmup", 1.0), ("milestones", "1.5"), ("milestones", "0"), ("milestones", "half"),
        ("schedule", "cosine"), ("recipe", "slow"), ("heads", "many"), ("bn", "none"), ("init", "zero"),
        ("storage", "disk"), ("precision", "fp8"), ("on_bad_image", "ignore"), ("nesterov", "yes"), ("flip", "no"),
        ("model", 18), ("transforms", None), ("rotate", "r0,r5"), ("rotate", ""), ("rotate", 1),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_with_its_field(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**{name: value})
    assert caught.value.field == name
    assert str(value) in caught.value.message
    assert "expected" in caught.value.message or "known are" in caught.value.message


def test_a_whole_number_is_accepted_as_a_fraction() -> None:
    assert config(lr=1, mixup=1).lr == 1


def test_config_json_gives_the_same_settings_back(tmp_path: Path) -> None:
    before = config(lr=0.3, flip=False, image_size=16, model="timm:resnet18", milestones="0.1,0.9", val_fraction=0.1)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"train": encode(before)}))
    assert read_config(path) == before


@pytest.mark.parametrize(
    "content",
    [None, "", "{", "[]", "3", '{"train": 3}', '{"data": {}}', '{"train": {"data": "digits", "epochs": "x"}}',
     '{"train": {"data": "digits", "out": "x", "epocs": 3}}', '{"train": {"out": "x"}}'],
)  # fmt: skip
def test_an_unusable_config_json_is_a_clear_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert caught.value.field == "config"
    assert str(path) in caught.value.message
    assert "epocs" not in (content or "") or "unknown settings epocs" in caught.value.message


def test_differences_name_the_setting_and_both_values() -> None:
    found = differences(config(), config(lr=0.2, val_fraction=0.1))
    assert found == ["`lr`: 0.1 before, 0.2 now", "`val_fraction`: 0.0 before, 0.1 now"]


def test_settings_of_place_and_speed_may_change() -> None:
    changes = {
        "out": "y", "device": "cuda", "workers": 0, "storage": "stream", "checkpoint_every": 3, "resume": True,
        "evaluate_every": 2, "tensorboard": False, "compile": False, "cuda_graph": False, "channels_last": "no",
        "generalization": True,
    }  # fmt: skip
    assert set(changes) == FREE
    assert not differences(config(), config(**changes))


def test_data_has_the_same_name_in_every_place() -> None:
    places = ("pets", "~/pets", "/some/where/pets", "some/../pets/", "~nobody-of-that-name/pets")
    assert {data_name(place) for place in places} == {"pets"}


def test_a_setting_that_is_missing_from_config_json_has_its_default() -> None:
    data = {
        "name": "digits",
        "classes": ["0"],
        "channels": 1,
        "image_size": 8,
        "stored_size": 8,
        "mean": [0],
        "std": [1],
    }
    before = decode(RunSettings, {"train": {"data": "digits", "out": "x"}, "data": data}, "config.json").train
    assert not differences(before, config())
    assert differences(before, config(train_fraction=0.5))


def test_names_are_the_transforms_one_by_one() -> None:
    assert config(transforms="r0, r1,").names == ("r0", "r1")


def test_for_data_applies_the_recipe() -> None:
    made = TrainConfig.for_data("cifar100", "x", recipe="paper", seed=3)
    assert (made.epochs, made.bn, made.recipe, made.seed) == (300, "separate", "paper", 3)
    with pytest.raises(ConfigError) as caught:
        TrainConfig.for_data("cifar100", "x", recipe="slow")
    assert caught.value.field == "recipe"


# ------------------------------------------------------------------------------------------------------------- recipes


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "folder/of/mine"])
def test_the_recipe_paper_is_appendix_a(data: str) -> None:
    c = config(**{**settings("paper", data), "data": data})
    assert (c.epochs, c.batch_size, c.lr, c.momentum, c.weight_decay) == (300, 64, 0.1, 0.9, 1e-4)
    assert (c.schedule, [share * c.epochs for share in c.milestone_shares]) == ("steps", [150, 225])
    assert (c.nesterov, c.bn, c.heads, c.init) == (False, "separate", "separate", "fresh")
    assert (c.label_smoothing, c.mixup, c.cutmix, c.pretrained) == (0, 0, 0, False)
    assert (c.flip, c.pad, c.image_size, c.val_fraction, c.train_fraction) == (None, None, None, 0, 1)  # the dataset's
    assert default_model("cifar100", image_size=32, channels=3) == "resnet18-cifar"


def test_imagenet200_has_its_own_variant() -> None:
    c = config(**{**settings("paper", "imagenet200"), "data": "imagenet200"})
    assert (c.epochs, c.batch_size, c.lr, c.momentum, c.weight_decay) == (120, 128, 0.1, 0.9, 1e-4)
    assert [round(share * c.epochs, 9) for share in c.milestone_shares] == [40, 80]
    assert default_model("imagenet200", image_size=224, channels=3) == "torchvision:resnet50"


@pytest.mark.parametrize("recipe", NAMES)
def test_a_recipe_has_only_known_settings(recipe: str) -> None:
    from importlib import import_module

    module = import_module(f"transnet.runs.recipes.{recipe}")
    defaults = {field.name: field.default for field in dataclasses.fields(TrainConfig)}
    for own in (module.SETTINGS, *module.PER_DATA.values()):
        assert set(own) <= set(defaults)
        config(**own)


def test_a_path_that_ends_in_a_datasets_name_has_its_recipe() -> None:
    assert settings("fast", "some/where/cifar100") == settings("fast", "cifar100") != settings("fast", "other")


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(ValueError, match="recipe: unknown 'slow'; known are fast paper"):
        settings("slow", "digits")


# --------------------------------------------------------------------------------------------------------- the command


@pytest.mark.parametrize(
    "changes",
    [{}, {"flip": True}, {"flip": False, "nesterov": False, "pretrained": True}, {"recipe": "paper"},
     {"milestones": "0.2,0.4", "schedule": "steps", "out": "a folder/it's", "lr": 1e-05, "image_size": 20, "pad": 0}],
)  # fmt: skip
def test_the_command_of_a_run_repeats_it(changes: dict[str, Any]) -> None:
    import shlex

    from transnet.cli.train import train_config

    defaults = settings(changes.get("recipe", "fast"), "digits")
    before = config(**{**defaults, **changes})
    words = shlex.split(command(before))
    assert words[:3] == ["transnet", "train", "digits"]
    assert train_config(words[2:]) == before


def test_a_mistake_on_the_command_line_exits_2_without_a_traceback() -> None:
    for words in (["--lr", "-1"], ["--epochs", "few"], ["--lerning-rate", "1"], ["--transforms", "r5"]):
        done = subprocess.run(
            [sys.executable, "-m", "transnet", "train", "digits", "--out", "x", *words],
            env=environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 2, words
        assert "Traceback" not in done.stderr + done.stdout
        assert words[0].lstrip("-") in done.stderr + done.stdout
