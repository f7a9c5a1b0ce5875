"""What a model says about itself: which network, which heads, which classes, and how it wants its images.

A run's ``config.json``, that of an exported folder and the metadata of an ONNX file all come down to this. They may
come from anywhere, so every entry is checked before anything is built from it.
"""

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from torch import nn

from transnet import backbones, d4
from transnet.data.decode import RULES
from transnet.model import TransNet
from transnet.runs.config import LARGEST_SIDE, ConfigError

# Beyond these a description is refused: each bounds what is allocated before the weights are compared.
LONGEST_CONFIG = 32 * 2**20
MOST_CLASSES = 100_000
MOST_HEADS = 64
_MODEL = re.compile(r"(timm:|torchvision:)?[A-Za-z0-9_]+([.-][A-Za-z0-9_]+)*")

# How an image file becomes the network's input, beside the sizes, the channels and their statistics. Exports carry
# both; one that names other rules is refused, because its predictions would differ without a message.
PREPROCESSING = {
    "version": RULES, "resize": "shorter side to stored_size", "interpolation": "bilinear", "antialias": True,
    "crop": "centre", "transparency": "white",
}  # fmt: skip
INPUT = {"name": "images", "layout": "NCHW", "dtype": "float32"}


@dataclass(frozen=True)
class Description:
    """All that using a model takes beside its weights.

    Attributes:
        kind: ``full``: all heads. ``pruned``: one, in the network's own place.
        model: the backbone's name in `transnet.backbones`.
        transforms: one name a head.
        classes: the labels' names.
        channels: 1 for grey images, 3 for colour.
        image_size: side of the square the network sees.
        stored_size: side of the square that one is cut out of, at the centre.
        mean: of each channel, in 0…1.
        std: likewise.
        heads: ``separate`` or ``shared``.
        bn: ``joint`` or ``separate``.
        fold: whether the transform of a pruned model is folded into its weights.
    """

    kind: Literal["full", "pruned"]
    model: str
    transforms: tuple[str, ...]
    classes: tuple[str, ...]
    channels: int
    image_size: int
    stored_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    heads: Literal["separate", "shared"] = "separate"
    bn: Literal["joint", "separate"] = "joint"
    fold: bool = False

    def build(self, model: nn.Module | None = None) -> nn.Module:
        """The network with random weights, the transform not folded in: a `TransNet`, or the pruned classifier."""
        if model is None:
            model = backbones.create(
                self.model, num_classes=len(self.classes), in_channels=self.channels, image_size=self.image_size
            )
        if self.kind == "pruned":
            return model
        return TransNet(model, self.transforms, heads=self.heads, init="copy", bn=self.bn)

    def to_dict(self) -> dict[str, Any]:
        """As it stands in an exported folder's ``config.json`` and in an ONNX file."""
        return {"schema": 1, **dataclasses.asdict(self), "preprocessing": PREPROCESSING, "input": INPUT}


def of_run(content: dict[str, Any], source: Path | str, *, named: bool = True) -> Description:
    """Of a run's ``config.json``.

    Args:
        content: the file's.
        source: where it lies, for messages.
        named: whether the backbone must be one of `transnet.backbones`.
    """
    train, data = content.get("train"), content.get("data")
    if not isinstance(train, dict) or not isinstance(data, dict):
        raise ConfigError(f"{source}: not a run's config: 'train' and 'data' are needed in it")
    kept = {key: train.get(key) for key in ("model", "transforms", "heads", "bn")}
    kept |= {key: data.get(key) for key in ("classes", "channels", "image_size", "stored_size", "mean", "std")}
    fixed = {"schema": content.get("schema"), "kind": "full", "fold": False, "preprocessing": PREPROCESSING}
    return of_export({**fixed, "input": INPUT, **kept}, source, named=named)


def of_export(content: dict[str, Any], source: Path | str, *, named: bool = True) -> Description:
    """Of an exported model's ``config.json`` or metadata: what `Description.to_dict` wrote; other entries are left."""
    read = _Reader(content, str(source))
    if content.get("schema") != 1:
        raise read.wrong("schema", "1 is what this version reads")
    for key, known in (("preprocessing", PREPROCESSING), ("input", INPUT)):
        if content.get(key) != known:
            raise read.wrong(key, f"this version of transnet applies {known}")
    kind = read.choice("kind", ("full", "pruned"))
    channels = read.integer("channels", 1, 4)
    size = read.integer("image_size", 1, LARGEST_SIDE)
    return Description(
        kind=kind,
        model=read.model() if named else str(content.get("model")),
        transforms=read.transforms(kind),
        classes=read.classes(),
        channels=channels,
        image_size=size,
        stored_size=read.integer("stored_size", size, 2 * LARGEST_SIDE),
        mean=read.numbers("mean", channels, lambda value: -10 <= value <= 10, "between -10 and 10"),
        std=read.numbers("std", channels, lambda value: 1e-6 <= value <= 10, "between 0.000001 and 10"),
        heads=read.choice("heads", ("separate", "shared"), "separate"),
        bn=read.choice("bn", ("joint", "separate"), "joint"),
        fold=read.choice("fold", (True, False), False),
    )


def read_json(path: Path, hint: str) -> dict[str, Any]:
    """A JSON object from a file that may be anything, or a clear error that ends in ``hint``."""
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; {hint}")
    try:
        size = path.stat().st_size
        if size > LONGEST_CONFIG:
            raise ConfigError(f"{path}: {size:,} bytes; at most {LONGEST_CONFIG:,} are read")
        return parse_json(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"{path} is damaged or cannot be read ({error})") from None


def parse_json(text: bytes | str, source: str) -> dict[str, Any]:
    """A JSON object from text that may be anything."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source} is damaged or cannot be read ({error})") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{source} is damaged: it holds no object")
    return content


class _Reader:
    """Entries of a description, each checked; every error names the entry, what was found and what would work."""

    def __init__(self, content: Mapping[str, Any], source: str) -> None:
        self.content, self.source = content, source

    def wrong(self, key: str, needed: str) -> ConfigError:
        given = repr(self.content.get(key))
        shown = given if len(given) <= 80 else given[:77] + "…"
        return ConfigError(f"{self.source}: {key} is {shown}; {needed}")

    def choice(self, key: str, known: tuple[Any, ...], default: Any = None) -> Any:
        value = self.content.get(key, default)
        if not isinstance(value, type(known[0])) or value not in known:
            raise self.wrong(key, f"known are {' '.join(str(option) for option in known)}")
        return value

    def integer(self, key: str, low: int, high: int) -> int:
        value = self.content.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.wrong(key, f"a whole number from {low} to {high} is needed")
        return value

    def numbers(self, key: str, length: int, fits: Callable[[float], bool], needed: str) -> tuple[float, ...]:
        values = self.content.get(key)
        if not isinstance(values, (list, tuple)) or len(values) != length:
            raise self.wrong(key, f"a list of {length} numbers is needed, one a channel")
        for value in values:
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            if not number or not fits(value):
                raise self.wrong(key, f"numbers {needed} are needed")
        return tuple(float(value) for value in values)

    def model(self) -> str:
        value = self.content.get("model")
        if not isinstance(value, str) or len(value) > 200 or not _MODEL.fullmatch(value):
            known = f"{' '.join(backbones.NAMES)} timm:NAME torchvision:NAME"
            raise self.wrong("model", f"the name of a backbone is needed: {known}")
        return value

    def classes(self) -> tuple[str, ...]:
        values = self.content.get("classes")
        if not isinstance(values, (list, tuple)) or not 1 <= len(values) <= MOST_CLASSES:
            raise self.wrong("classes", f"a list of up to {MOST_CLASSES:,} names is needed")
        if not all(isinstance(value, str) and len(value) <= 1000 for value in values):
            raise self.wrong("classes", "every class needs a name of up to 1,000 characters")
        return tuple(values)

    def transforms(self, kind: str) -> tuple[str, ...]:
        values = self.content.get("transforms")
        if isinstance(values, str):
            values = [part.strip() for part in values.split(",") if part.strip()]
        if not isinstance(values, (list, tuple)) or not 1 <= len(values) <= MOST_HEADS:
            raise self.wrong("transforms", f"a list of up to {MOST_HEADS} names is needed, such as r0,r1")
        if any(not isinstance(value, str) or value not in d4.NAMES for value in values):
            raise self.wrong("transforms", f"known are {' '.join(d4.NAMES)}")
        if kind == "pruned" and len(values) != 1:
            raise self.wrong("transforms", "a pruned model has one")
        return cast(tuple[str, ...], tuple(values))
