"""What is needed to use a trained model besides its weights: its network, heads, classes and preprocessing.

A `Description` comes from the ``config.json`` of a run or an export or from an ONNX file, which strangers may have
written. So every entry is checked before anything is built from it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta
from torch import nn

from transnet import backbones
from transnet.data.pixels import RULES
from transnet.errors import ConfigError, FileError
from transnet.inputs import Transform
from transnet.model import TransNet
from transnet.runs import own_transforms
from transnet.runs.config import LARGEST_SIDE
from transnet.runs.records import ChannelMeans, ChannelStds, ClassNames, RunSettings, Side, decode, encode

_MODEL = re.compile(r"(timm:|torchvision:)?[A-Za-z0-9_]+([.-][A-Za-z0-9_]+)*")

# How an image file becomes the network's input. A file with other rules is refused, because its predictions would
# differ silently.
PREPROCESSING = {
    "version": RULES, "resize": "shorter side to stored_size", "interpolation": "bilinear", "antialias": True,
    "crop": "centre", "transparency": "white",
}  # fmt: skip
INPUT = {"name": "images", "layout": "NCHW", "dtype": "float32"}


@dataclass(frozen=True)
class Description:
    """Everything needed to use a model besides its weights."""

    kind: Literal["full", "pruned"]  # full: all heads. pruned: one head, in the network's own place
    model: Annotated[str, Meta(max_length=200)]  # the backbone's name in `transnet.backbones`
    transforms: Annotated[tuple[str, ...], Meta(min_length=1, max_length=64)]  # one name per head
    classes: ClassNames
    channels: Annotated[int, Meta(ge=1, le=4)]  # 1: grey, 3: colour
    image_size: Annotated[int, Meta(ge=1, le=LARGEST_SIDE)]  # side of the square that the network sees
    stored_size: Side  # side of the square that it is cut from, at the centre
    mean: ChannelMeans  # in 0…1
    std: ChannelStds
    heads: Literal["separate", "shared"] = "separate"
    bn: Literal["joint", "separate"] = "joint"
    fold: bool = False  # whether the transform of a pruned model is folded into its weights
    # Of the user's own, as NAME=module:function. They are never imported from here, see `own_transforms`.
    transform: Annotated[tuple[Annotated[str, Meta(max_length=500)], ...], Meta(max_length=64)] = ()

    def __post_init__(self) -> None:
        if not _MODEL.fullmatch(self.model):
            known = f"{' '.join(backbones.NAMES)} timm:NAME torchvision:NAME"
            raise ConfigError(f"model is {self.model!r}; the name of a backbone is needed: {known}")
        own_transforms.check_names(self.transforms, own_transforms.parse(self.transform))
        if self.kind == "pruned" and len(self.transforms) != 1:
            raise ConfigError(f"transforms has {len(self.transforms)} names; a pruned model has one")
        if self.stored_size < self.image_size:
            raise ConfigError(f"stored_size is {self.stored_size}; at least image_size, {self.image_size}, is needed")
        if {len(self.mean), len(self.std)} != {self.channels}:
            raise ConfigError(f"mean and std are {self.mean} and {self.std}; one number for each channel is needed")

    @classmethod
    def of_run(cls, settings: RunSettings, source: str) -> "Description":
        """Describe the network of a run with these settings; ``source`` names their file in errors."""
        train = settings.train
        heads = {"kind": "full", "model": train.model, "transforms": train.names, "heads": train.heads, "bn": train.bn}
        own = [entry for entry in train.transform if entry.partition("=")[0] in train.names]
        return decode(cls, {**encode(settings.data), **heads, "transform": own}, source)

    @classmethod
    def of_export(cls, content: Mapping[str, object], source: str) -> "Description":
        """Read what `to_dict` wrote; ``source`` names the file in errors. Other entries are ignored."""
        if content.get("schema") != 1:
            raise FileError(f"{source}: schema is {content.get('schema')!r:.80}; this version reads 1")
        for key, known in (("preprocessing", PREPROCESSING), ("input", INPUT)):
            if content.get(key) != known:
                raise FileError(f"{source}: {key} is {content.get(key)!r:.80}; this version applies {known}")
        return decode(cls, content, source)

    def to_dict(self) -> dict[str, object]:
        """The content of an exported folder's ``config.json`` and of an ONNX file's metadata."""
        return {"schema": 1, **encode(self), "preprocessing": PREPROCESSING, "input": INPUT}

    def with_functions(self, given: Sequence[str] | None, source: str) -> tuple[Transform, ...]:
        """The transforms with the functions of the user's own; ``given`` is as for `load`."""
        return own_transforms.with_functions(self.transforms, given, recorded=self.transform, source=source)

    def build(self, model: nn.Module | None = None, *, transforms: Sequence[Transform] = ()) -> nn.Module:
        """Build the network with random weights, without folding: a `TransNet`, or the pruned classifier.

        ``model`` is used instead of the backbone that is described. ``transforms`` are those of `with_functions`, which
        a network with transforms of the user's own needs.
        """
        if model is None:
            model = backbones.create(
                self.model, num_classes=len(self.classes), in_channels=self.channels, image_size=self.image_size
            )
        if self.kind == "pruned":
            return model
        return TransNet(model, transforms or self.transforms, heads=self.heads, init="copy", bn=self.bn)
