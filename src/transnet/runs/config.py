"""A run's settings: one frozen dataclass is the command line, the run's ``config.json`` and the trainer's argument."""

import dataclasses
import json
import math
import os
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

from transnet.errors import ConfigError

LARGEST_SIDE = 1024  # of the images that a network sees


@dataclass(frozen=True)
class TrainConfig:
    """Train a classifier with one head per transform of the images.

    DATA is a name (digits cifar10 cifar100 imagenette imagewoof imagenet200 fashion-mnist), a folder of class
    folders, a folder with train/ and val/ or test/ inside, a folder of Hugging Face parquet shards, or an .npz file.

    Example: transnet train cifar100 --transforms r0,r1 --out runs/t2
    """

    data: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATA")]
    """A data set's name, a folder or an .npz file."""
    out: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Folder of the run; made anew."""
    model: str | None = None
    """Backbone: resnet18-cifar, resnet8-small, …, timm:NAME or torchvision:NAME. None: the data set's default."""
    transforms: str = "r0,r1"
    """One head each, comma-separated, of r0 r1 r2 r3 m0 m1 m2 m3. r0 alone is the base classifier."""
    recipe: Literal["fast", "paper"] = "fast"
    """Where the other defaults come from: fast (one-cycle), or paper (the paper's appendix A). They also depend on the
    data: `transnet train DATA --help` shows them."""
    seed: int = 0
    """Decides initial weights, data order and augmentation."""
    epochs: int = 60
    """Passes over the training set."""
    batch_size: int = 128
    """Images a step, over all processes; each counts once per transform in the network."""
    lr: float = 0.1
    """Highest learning rate."""
    schedule: Literal["onecycle", "steps"] = "onecycle"
    """onecycle: up, then down to zero. steps: divided by 10 at each milestone."""
    warmup: float = 0.2
    """onecycle: share of the run in which the learning rate rises."""
    milestones: str = "0.5,0.75"
    """steps: shares of the run after which the learning rate falls."""
    momentum: float = 0.9
    """Of SGD."""
    nesterov: bool = True
    """Nesterov's momentum."""
    weight_decay: float = 5e-4
    """On all parameters."""
    label_smoothing: float = 0.0
    """Share of each target spread over all classes."""
    mixup: float = 0.0
    """α of mixup, 0 for none."""
    cutmix: float = 0.0
    """α of CutMix, 0 for none."""
    invariance_weight: float = 0.0
    """Weight of a penalty on kernels that rotations by 90° change (see `transnet invariance`)."""
    distillation: float = 0.0
    """Weight of a term that teaches the identity head what all heads together say."""
    label_augmentation: float = 0.0
    """Weight of a term by which the heads also tell the transforms apart: 1 is self-supervised label augmentation."""
    heads: Literal["separate", "shared"] = "separate"
    """shared: one head under all transforms (the paper's "Algorithm only")."""
    bn: Literal["joint", "separate"] = "joint"
    """Batch-norm statistics over all copies of a batch, or per transform."""
    init: Literal["fresh", "copy"] = "fresh"
    """Heads drawn anew, or each a copy of the model's own."""
    pretrained: bool = False
    """Start from the library's weights (timm: and torchvision: models)."""
    image_size: int | None = None
    """Side of the images the network sees. None: the data set's own."""
    flip: bool | None = None
    """Mirror images left-right in training, and test with and without. None: as the data set is defined."""
    pad: int | None = None
    """Pixels to pad by before the random crop. None: as the data set is defined."""
    val_fraction: float = 0.0
    """Share of the training set to cut off, stratified, for choices that must not see the test set."""
    train_fraction: float = 1.0
    """Share of the training images to use, stratified: to see what fewer images would do."""
    label_column: str | None = None
    """Parquet shards: the column of labels, where it is not found."""
    on_bad_image: Literal["stop", "skip"] = "stop"
    """A damaged image stops the run before it trains, or is left out and counted."""
    storage: Literal["auto", "resident", "stream"] = "auto"
    """Images in device memory, or decoded while training. auto: resident where they fit."""
    workers: int = 4
    """Processes that decode, where images are streamed."""
    device: str = "auto"
    """cpu, cuda, cuda:1, … auto: a GPU where there is one."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """auto: bf16 on a GPU that has it."""
    channels_last: bool = True
    """Memory format on a GPU."""
    compile: bool = True
    """torch.compile on a GPU."""
    cuda_graph: bool = True
    """The whole step as one CUDA graph."""
    deterministic: bool = False
    """Bit-identical repetition on a GPU, at some speed. On a CPU it always is."""
    sync_bn: bool = False
    """Batch-norm statistics over all processes (GPUs only)."""
    evaluate_every: int = 1
    """Epochs between looks at the validation and test set, for the curves; 0: at the end only. Nothing is selected."""
    checkpoint_every: int = 0
    """Epochs between checkpoints. 0: as often as costs under 2 % of the time."""
    tensorboard: bool = True
    """Write curves for TensorBoard, where it is installed."""
    resume: bool = False
    """Go on from the last checkpoint in --out; starts anew where there is none."""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(TrainConfig).items():
            _check_kind(name, getattr(self, name), hint)
        least = {"epochs": 1, "batch_size": 1, "image_size": 1, "pad": 0, "workers": 0, "evaluate_every": 0, "seed": 0}
        for name, low in least.items():
            if getattr(self, name) is not None and getattr(self, name) < low:
                raise ConfigError(f"{getattr(self, name)} was given; at least {low} is needed", field=name)
        if self.image_size is not None and self.image_size > LARGEST_SIDE:
            raise ConfigError(f"{self.image_size} was given; {LARGEST_SIDE} is the most", field="image_size")
        weights = ("weight_decay", "invariance_weight", "distillation", "label_augmentation")
        for name in ("lr", "mixup", "cutmix", "checkpoint_every", *weights):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{getattr(self, name)} was given; 0 or more is needed", field=name)
        for name in ("val_fraction", "label_smoothing", "warmup", "momentum"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{getattr(self, name)} was given; 0 or more and under 1 is needed", field=name)
        if not 0 < self.train_fraction <= 1:
            raise ConfigError(
                f"{self.train_fraction} was given; more than 0, up to 1 is needed", field="train_fraction"
            )
        try:
            shares = self.milestone_shares
        except ValueError:
            shares = (2.0,)
        if any(not 0 < share < 1 for share in shares):
            raise ConfigError(
                f"{self.milestones!r} was given; shares of the run are needed: 0.5,0.75", field="milestones"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The transforms, one name per head."""
        return tuple(name.strip() for name in self.transforms.split(",") if name.strip())

    @property
    def milestone_shares(self) -> tuple[float, ...]:
        """The milestones as numbers."""
        return tuple(float(part) for part in self.milestones.split(",") if part.strip())


# What decides where and how fast a run goes, but not what it computes: a resumed run may change it.
FREE = {"out", "resume", "device", "workers", "storage", "evaluate_every", "checkpoint_every", "tensorboard"}
# What may differ in rounding only.
FREE |= {"compile", "cuda_graph", "channels_last"}


def differences(before: TrainConfig, now: TrainConfig) -> list[str]:
    """Return the settings that keep a run from being resumed, each as ```lr`: 0.1 before, 0.2 now``.

    Data may be in another place than before if its name is the same; its fingerprint shows whether the content is.
    """

    def same(name: str) -> bool:
        if name == "data":
            return data_name(before.data) == data_name(now.data)
        return bool(getattr(before, name) == getattr(now, name))

    return [
        f"`{field.name}`: {getattr(before, field.name)!r} before, {getattr(now, field.name)!r} now"
        for field in dataclasses.fields(now)
        if field.name not in FREE and not same(field.name)
    ]


def data_name(data: str) -> str:
    """What data is called wherever it lies: its name, or the last part of its path."""
    return Path(os.path.abspath(os.path.expanduser(data))).name


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """As it stands in ``config.json``."""
    return dataclasses.asdict(config)


def from_dict(settings: dict[str, Any]) -> TrainConfig:
    """Read what `to_dict` wrote; unknown settings are an error that names them."""
    known = {field.name for field in dataclasses.fields(TrainConfig)}
    if unknown := sorted(set(settings) - known):
        raise ConfigError(f"config: unknown settings {', '.join(unknown)}")
    if missing := sorted({"data", "out"} - set(settings)):
        raise ConfigError(f"config: {', '.join(missing)} missing")
    return TrainConfig(**settings)


def configured(data: str, out: str, *, recipe: str = "fast", **given: Any) -> TrainConfig:
    """A recipe's settings for a data set, with changes: what `transnet train` makes of its options.

    A `TrainConfig` made directly has the plain defaults, whatever its ``recipe`` says.
    """
    from transnet.runs import recipes

    name = data if isinstance(data, str) else ""
    return from_dict({**recipes.settings(recipe, name), "data": data, "out": out, **given})


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a run's ``config.json``."""
    try:
        content = json.loads(path.read_text())
        settings = content["train"]
        if not isinstance(settings, dict):
            raise KeyError("train")
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; give a run's config.json", field="config") from None
    except IsADirectoryError:
        raise ConfigError(
            f"{path} is a folder; give the file {path / 'config.json'} of a run", field="config"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not a run's config.json ({error})", field="config") from None
    return settings


def _check_kind(name: str, value: Any, hint: Any) -> None:
    """The command line gives every setting its type; Python code and an edited ``config.json`` may not."""
    if value is tyro.MISSING:
        return
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ConfigError(f"unknown {value!r}; known are {' '.join(get_args(hint))}", field=name)
        return
    kinds = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    wide = (*kinds, int) if float in kinds else kinds
    if not isinstance(value, wide) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join("None" if kind is types.NoneType else kind.__name__ for kind in kinds)
        raise ConfigError(f"{value!r} was given; {wanted} is needed", field=name)
