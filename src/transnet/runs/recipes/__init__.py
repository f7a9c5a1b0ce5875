"""Recipes: where the defaults of `transnet train` come from.

A recipe is one short file: what it reaches, the command, and only what differs from the defaults of `TrainConfig`.
Base and TransNet always take the same recipe.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

from transnet.data.catalog import DATASETS
from transnet.errors import ConfigError

NAMES = ("fast", "paper")


def settings(recipe: str, data: str) -> dict[str, Any]:
    """What a recipe sets for a data set (a name, or a path that ends in one), beside the defaults."""
    if recipe not in NAMES:
        raise ConfigError(f"unknown {recipe!r}; known are {' '.join(NAMES)}", field="recipe")
    module = import_module(f"transnet.runs.recipes.{recipe}")
    named = DATASETS.get(Path(data).stem)
    return {"recipe": recipe, **module.SETTINGS, **(module.PER_DATA.get(named.recipe, {}) if named else {})}


def default_model(data: str, *, image_size: int, channels: int) -> str:
    """The backbone a data set is trained with where none is asked for."""
    if data in DATASETS:
        return DATASETS[data].model
    if image_size <= 28:
        return "resnet8-small" if image_size <= 16 else "resnet20-small"
    if image_size <= 64:
        return "resnet18-cifar"
    return "torchvision:resnet18" if channels == 3 else "timm:resnet18"
