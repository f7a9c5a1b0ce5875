"""A run's settings: one dataclass is the command line, the content of ``config.json`` and the trainer's argument."""

import dataclasses
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from transnet.arguments import Positional, Repeatable, argument
from transnet.data.catalog import DATASETS
from transnet.errors import ConfigError, FileError
from transnet.runs import own_transforms
from transnet.runs.files import read_json

LARGEST_SIDE = 1024  # of the images that a network sees
_LARGEST = 2**63 - 1  # of a seed

Count = Annotated[int, Meta(ge=1, le=_LARGEST)]
Number = Annotated[int, Meta(ge=0, le=_LARGEST)]
Weight = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
Share = Annotated[float, Meta(ge=0, lt=1)]
OwnTransforms = Annotated[Repeatable[tuple[str, ...]], argument(metavar="NAME=module:function")]


@dataclass(frozen=True)
class TrainConfig:
    """Train a classifier with one head per transform of the images.

    DATA is a name, a folder of class folders, a folder with train/ and val/ or test/ inside, a folder of Hugging Face
    parquet shards, or an .npz file.

    Example: transnet train cifar100 --transforms r0,r1 --out runs/t2
    """

    data: Annotated[
        Positional[str],
        argument(metavar="DATA", help=f"A dataset's name ({' '.join(DATASETS)}), a folder or an .npz file."),
    ]
    out: Annotated[str, argument(metavar="DIR")]
    """New folder for the run."""
    model: str | None = None
    """Network: resnet18-cifar, resnet8-small, …, timm:NAME or torchvision:NAME. None: depends on the data."""
    transforms: str = "r0,r1"
    """One head for each of these transforms, comma-separated, from r0 r1 r2 r3 m0 m1 m2 m3. r0 alone: the baseline."""
    transform: OwnTransforms = ()
    """A function of your own as a further transform, such as gray=mypackage.transforms:gray."""
    recipe: Literal["fast", "paper"] = "fast"
    """Source of the other defaults: fast (one-cycle) or paper (the paper's appendix A). They also depend on the data:
    `transnet train DATA --help` shows them."""
    seed: Number = 0
    """Determines the initial weights, the order of the data, the augmentation and the images of `train_fraction`."""
    epochs: Count = 60
    """Passes over the training set."""
    batch_size: Count = 128
    """Images per step, over all processes. The network sees each of them once per transform."""
    lr: Weight = 0.1
    """Highest learning rate."""
    schedule: Literal["onecycle", "steps"] = "onecycle"
    """onecycle: the learning rate rises and then falls to zero. steps: it is divided by 10 at each milestone."""
    warmup: Share = 0.2
    """With onecycle: fraction of the run in which the learning rate rises."""
    milestones: str = "0.5,0.75"
    """With steps: fractions of the run after which the learning rate falls."""
    momentum: Share = 0.9
    """Momentum of SGD."""
    nesterov: bool = True
    """Use Nesterov's momentum."""
    weight_decay: Weight = 5e-4
    """Weight decay, on all parameters."""
    label_smoothing: Share = 0.0
    """Fraction of each target that is spread over all classes."""
    mixup: Weight = 0.0
    """Alpha of mixup; 0 for none."""
    cutmix: Weight = 0.0
    """Alpha of CutMix; 0 for none."""
    mix_share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Share of the batches that mixup or CutMix mixes."""
    past_targets: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """With one head: mix the network's own earlier prediction for each image into its target, with a weight that rises
    from 0 to this one. Label smoothing is then off. 0: no such targets."""
    invariance_weight: Weight = 0.0
    """Weight of a penalty on kernels that rotations by 90° change (see `transnet invariance`)."""
    distillation: Weight = 0.0
    """Weight of the self-distillation term, which pulls the identity head towards the mean of all heads."""
    label_augmentation: Weight = 0.0
    """Weight of a term that makes the heads also predict the transform. 1: self-supervised label augmentation."""
    heads: Literal["separate", "shared"] = "separate"
    """separate: one head per transform. shared: one head for all transforms (the paper's "Algorithm only")."""
    bn: Literal["joint", "separate"] = "joint"
    """Batch-norm statistics over all copies of a batch (joint), or per transform (separate)."""
    init: Literal["fresh", "copy"] = "fresh"
    """How to initialise the heads: randomly (fresh), or as copies of the model's own head (copy)."""
    pretrained: bool = False
    """Start from pretrained weights (timm: and torchvision: models)."""
    image_size: Annotated[int, Meta(ge=1, le=LARGEST_SIDE)] | None = None
    """Side of the square that the network sees, in pixels. None: depends on the data."""
    flip: bool | None = None
    """Flip images horizontally in training, and test with and without flip TTA. None: depends on the data."""
    pad: Number | None = None
    """Pixels of padding before the random crop. None: depends on the data."""
    rotate: str | None = None
    """Rotate each training image by one of these transforms at random, such as r0,r1,r2,r3, before the heads' own
    transforms. Repeat a name to give it more weight. None: no rotation."""
    val_fraction: Share = 0.0
    """Fraction of the training set for validation, stratified by class: for choices that must not see the test set."""
    train_fraction: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Fraction of the training images to use, stratified by class. Another seed uses other images."""
    label_column: str | None = None
    """Parquet shards: the column of labels, if it is not found automatically."""
    on_bad_image: Literal["stop", "skip"] = "stop"
    """What to do with a damaged image: stop before training, or skip and count it."""
    storage: Literal["auto", "resident", "stream"] = "auto"
    """Keep the images in device memory (resident), or decode them during training (stream). auto: resident if they
    fit."""
    workers: Number = 4
    """Processes that decode streamed images."""
    device: str = "auto"
    """cpu, cuda, cuda:1, … or mps (untested). auto: a CUDA GPU if there is one."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """auto: bf16 on a GPU that computes in it without emulation, and fp32 otherwise. A CPU can have bf16 too."""
    channels_last: Literal["auto", "yes", "no"] = "auto"
    """Use the channels-last memory format. auto: yes on a GPU, and on a CPU with AVX2 or AVX-512 for colour images and
    a network with batch norm after most convolutions."""
    compile: bool = True
    """Use torch.compile on a GPU."""
    cuda_graph: bool = True
    """Capture the whole step as one CUDA graph."""
    deterministic: bool = False
    """Make runs on a GPU bit-identical, which is slower. Runs on a CPU always are."""
    sync_bn: bool = False
    """Compute batch-norm statistics over all processes (GPUs only)."""
    evaluate_every: Number = 1
    """Epochs between evaluations for the learning curves. 0: only at the end. Nothing is selected by them."""
    generalization: bool = False
    """Score the training set too, at the end. Always on for the recipes fast and paper."""
    checkpoint_every: Number = 0
    """Epochs between checkpoints. 0: as often as possible within 2 % of the time."""
    tensorboard: bool = True
    """Write TensorBoard curves if TensorBoard is installed."""
    resume: bool = False
    """Resume from the last checkpoint in --out, or start from the beginning if there is none."""

    def __post_init__(self) -> None:
        if isinstance(self.transform, str | list):  # from Python, a study file or JSON
            own = (self.transform,) if isinstance(self.transform, str) else tuple(self.transform)
            object.__setattr__(self, "transform", own)
        for name, hint in get_type_hints(TrainConfig, include_extras=True).items():
            value = getattr(self, name)
            try:
                msgspec.convert(value, hint)
            except msgspec.ValidationError as error:
                reason = str(error).replace("`", "").replace("Expected", "expected")
                if get_origin(hint) is Literal:
                    reason = f"known are {' '.join(get_args(hint))}"
                raise ConfigError(f"{value!r} was given; {reason}", field=name) from None
        own_transforms.parse(self.transform)
        if bad := [name for name in self.rotations if not re.fullmatch("[rm][0-3]", name)]:
            raise ConfigError(f"{self.rotate!r}: unknown {bad[0]!r}; known are r0 r1 r2 r3 m0 m1 m2 m3", field="rotate")
        if self.mix_share < 1 and not (self.mixup or self.cutmix):
            raise ConfigError("needs `mixup` or `cutmix`, which it is a share of", field="mix_share")
        if self.past_targets and len(self.names) != 1:
            given = f"needs one head, and `transforms` is {self.transforms}"
            raise ConfigError(f"{given}; give r0, or `distillation` for several heads", field="past_targets")
        with suppress(ValueError):
            if all(0 < share < 1 for share in self.milestone_shares):
                return
        raise ConfigError(f"{self.milestones!r} was given; expected fractions such as 0.5,0.75", field="milestones")

    @classmethod
    def for_data(cls, data: str, out: str, *, recipe: str = "fast", **settings: Any) -> "TrainConfig":
        """Return a recipe's settings for a dataset, with changes, as `transnet train` does.

        The constructor uses the plain defaults; its ``recipe`` only records where the settings came from.
        """
        from transnet.runs import recipes

        return from_dict({**recipes.settings(recipe, data), "data": data, "out": out, **settings})

    @property
    def names(self) -> tuple[str, ...]:
        """The transforms, one name per head."""
        return tuple(name.strip() for name in self.transforms.split(",") if name.strip())

    @property
    def rotations(self) -> tuple[str, ...]:
        """The transforms that training images get at random; r0 alone changes nothing."""
        return tuple(name.strip() for name in ("r0" if self.rotate is None else self.rotate).split(","))

    @property
    def milestone_shares(self) -> tuple[float, ...]:
        """The milestones as numbers."""
        return tuple(float(part) for part in self.milestones.split(",") if part.strip())


# A resumed run may change these: they decide where and how fast it trains, or change its result by rounding only.
FREE = {
    "out", "resume", "device", "workers", "storage", "evaluate_every", "generalization", "checkpoint_every",
    "tensorboard", "compile", "cuda_graph", "channels_last",
}  # fmt: skip


def differences(before: TrainConfig, now: TrainConfig) -> list[str]:
    """Return the settings that keep a run from being resumed, each as ```lr`: 0.1 before, 0.2 now``."""
    if data_name(before.data) == data_name(now.data):  # in another place; the fingerprint shows whether it is the same
        now = dataclasses.replace(now, data=before.data)
    if now.precision == "auto":  # which keeps the one that was recorded
        now = dataclasses.replace(now, precision=before.precision)
    names = [field.name for field in dataclasses.fields(TrainConfig) if field.name not in FREE]
    both = [(name, getattr(before, name), getattr(now, name)) for name in names]
    return [f"`{name}`: {old!r} before, {new!r} now" for name, old, new in both if old != new]


def data_name(data: str) -> str:
    """Return a dataset's name, or the last part of its path."""
    return Path(os.path.abspath(os.path.expanduser(data))).name


def from_dict(settings: Mapping[str, Any]) -> TrainConfig:
    """Build a config from settings by name; an unknown one is an error."""
    known = {field.name for field in dataclasses.fields(TrainConfig)}
    if unknown := sorted(set(settings) - known):
        raise ConfigError(f"unknown settings {', '.join(unknown)}; known are {' '.join(sorted(known))}")
    if missing := sorted({"data", "out"} - set(settings)):
        raise ConfigError(f"{' and '.join(missing)} missing")
    return TrainConfig(**settings)


def read_config(path: str | Path) -> TrainConfig:
    """Read the settings in a run's ``config.json``, given the file."""
    try:
        settings = read_json(Path(path), "give a run's config.json").get("train")
        return from_dict(settings if isinstance(settings, dict) else {})
    except FileError as error:
        raise ConfigError(error.message, field="config") from None
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be used: {error}", field="config") from None
