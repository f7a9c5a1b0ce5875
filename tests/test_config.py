"""Settings: what is refused, what is kept, and what the recipes set."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from small_runs import environment
from transnet.runs.config import (
    FREE,
    ConfigError,
    TrainConfig,
    data_name,
    differences,
    from_dict,
    read_config,
    to_dict,
)
from transnet.runs.provenance import command
from transnet.runs.recipes import NAMES, default_model, settings


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
        ("model", 18), ("transforms", None),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_with_its_flag_and_itself(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**{name: value})
    message = str(caught.value)
    assert message.startswith("--" + name.replace("_", "-") + ": ")
    assert str(value) in message
    assert "needed" in message or "known are" in message


def test_whole_numbers_do_where_a_fraction_may_stand() -> None:
    assert config(lr=1, mixup=1).lr == 1


def test_config_json_gives_the_same_settings_back(tmp_path: Path) -> None:
    before = config(lr=0.3, flip=False, image_size=16, model="timm:resnet18", milestones="0.1,0.9", val_fraction=0.1)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"train": to_dict(before)}))
    assert from_dict(read_config(path)) == before


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "3", '{"train": 3}', '{"data": {}}', '{"train": {"data": "digits", "epochs": "x"}}',
                '{"train": {"data": "digits", "out": "x", "epocs": 3}}', '{"train": {"out": "x"}}'],
)  # fmt: skip
def test_a_damaged_config_json_is_a_clear_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(ConfigError):
        from_dict(read_config(path))


def test_a_missing_config_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.json does not exist"):
        read_config(tmp_path / "nowhere.json")


def test_unknown_settings_are_named() -> None:
    with pytest.raises(ConfigError, match="unknown settings epocs"):
        from_dict({"data": "digits", "out": "x", "epocs": 3})


def test_differences_name_flag_and_both_values() -> None:
    before, now = to_dict(config()), to_dict(config(lr=0.2, val_fraction=0.1))
    assert differences(before, now) == ["--lr: 0.1 before, 0.2 now", "--val-fraction: 0.0 before, 0.1 now"]


def test_where_and_how_fast_a_run_goes_may_change() -> None:
    changes = {
        "out": "y", "device": "cuda", "workers": 0, "storage": "stream", "checkpoint_every": 3, "resume": True,
        "evaluate_every": 2, "tensorboard": False, "compile": False, "cuda_graph": False, "channels_last": False,
    }  # fmt: skip
    assert set(changes) == FREE
    assert not differences(to_dict(config()), to_dict(config(**changes)))


def test_data_has_a_name_wherever_it_lies() -> None:
    places = ("pets", "~/pets", "/some/where/pets", "some/../pets/", "~nobody-of-that-name/pets")
    assert {data_name(place) for place in places} == {"pets"}


def test_a_setting_that_did_not_exist_when_the_run_was_begun_was_at_its_default() -> None:
    before = to_dict(config())
    del before["train_fraction"]
    assert not differences(before, to_dict(config()))
    assert differences(before, to_dict(config(train_fraction=0.5)))


# ------------------------------------------------------------------------------------------------------------- recipes


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "folder/of/mine"])
def test_the_recipe_paper_is_appendix_a(data: str) -> None:
    c = config(**{**settings("paper", data), "data": data})
    assert (c.epochs, c.batch_size, c.lr, c.momentum, c.weight_decay) == (300, 64, 0.1, 0.9, 1e-4)
    assert (c.schedule, [share * c.epochs for share in c.milestone_shares]) == ("steps", [150, 225])
    assert (c.nesterov, c.bn, c.heads, c.init) == (False, "separate", "separate", "fresh")
    assert (c.label_smoothing, c.mixup, c.cutmix, c.pretrained) == (0, 0, 0, False)
    assert (c.flip, c.pad, c.image_size, c.val_fraction, c.train_fraction) == (None, None, None, 0, 1)  # the data set's


def test_imagenet200_has_its_own_variant() -> None:
    c = config(**{**settings("paper", "imagenet200"), "data": "imagenet200"})
    assert (c.epochs, c.batch_size, c.lr, c.momentum, c.weight_decay) == (120, 128, 0.1, 0.9, 1e-4)
    assert [round(share * c.epochs, 9) for share in c.milestone_shares] == [40, 80]
    assert default_model("imagenet200", image_size=224, channels=3) == "torchvision:resnet50"


@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
def test_the_papers_cifar_network_is_resnet18(data: str) -> None:
    assert default_model(data, image_size=32, channels=3) == "resnet18-cifar"


@pytest.mark.parametrize("recipe", NAMES)
def test_a_recipe_sets_only_what_exists_and_differs(recipe: str) -> None:
    from importlib import import_module

    module = import_module(f"transnet.runs.recipes.{recipe}")
    defaults = {field.name: field.default for field in dataclasses.fields(TrainConfig)}
    for own in (module.SETTINGS, *module.PER_DATA.values()):
        assert set(own) <= set(defaults)
        config(**own)


def test_a_recipe_is_found_for_a_path_that_ends_in_the_data_sets_name() -> None:
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
def test_the_command_of_a_run_is_the_run(changes: dict[str, Any]) -> None:
    import shlex

    import tyro

    defaults = settings(changes.get("recipe", "fast"), "digits")
    before = config(**{**defaults, **changes})
    words = shlex.split(command(before, defaults))
    assert words[:3] == ["transnet", "train", "digits"]
    start = from_dict({**defaults, "data": tyro.MISSING, "out": tyro.MISSING})
    assert tyro.cli(TrainConfig, args=words[2:], default=start) == before


def test_a_mistake_on_the_command_line_exits_2_without_a_traceback() -> None:
    for words in (["--lr", "-1"], ["--epochs", "few"], ["--lerning-rate", "1"], ["--transforms", "r5"]):
        done = subprocess.run(
            [sys.executable, "-m", "transnet", "train", "digits", "--out", "x", *words],
            env=environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 2, words
        assert "Traceback" not in done.stderr + done.stdout
        assert words[0].lstrip("-") in done.stderr + done.stdout
