"""Recipes: the defaults of `transnet train` that differ from `TrainConfig`'s, one short file each.

The baseline and TransNet always use the same recipe.
"""

from importlib import import_module
from pathlib import Path

from transnet.data.catalog import DATASETS
from transnet.errors import ConfigError

NAMES = ("fast", "paper")


def settings(recipe: str, data: str) -> dict[str, object]:
    """Return a recipe's settings for a dataset, given by name or by a path that ends in the name."""
    if recipe not in NAMES:
        raise ConfigError(f"unknown {recipe!r}; known are {' '.join(NAMES)}", field="recipe")
    module = import_module(f"transnet.runs.recipes.{recipe}")
    named = DATASETS.get(Path(data).stem)
    return {"recipe": recipe, **module.SETTINGS, **(module.PER_DATA.get(named.recipe, {}) if named else {})}


def default_model(data: str, *, image_size: int, channels: int) -> str:
    """Return the backbone for a dataset if the user names none."""
    if data in DATASETS:
        return DATASETS[data].model
    if image_size <= 28:
        return "resnet8-small" if image_size <= 16 else "resnet20-small"
    if image_size <= 64:
        return "resnet18-cifar"
    return "torchvision:resnet18" if channels == 3 else "timm:resnet18"
