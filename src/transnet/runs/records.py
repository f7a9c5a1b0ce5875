"""What a run leaves on disk, as typed records: `RunSettings`, `EpochEntry` and `Result`.

`decode` is the one way from JSON to a record, and `encode` the one way back.
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from transnet.errors import FileError
from transnet.runs.config import LARGEST_SIDE, TrainConfig

T = TypeVar("T")

# Larger values are refused, because each of these sizes something before the weights have been compared with it.
ClassNames = Annotated[tuple[Annotated[str, Meta(max_length=1000)], ...], Meta(min_length=1, max_length=100_000)]
Side = Annotated[int, Meta(ge=1, le=2 * LARGEST_SIDE)]
ChannelMeans = Annotated[tuple[Annotated[float, Meta(ge=-10, le=10)], ...], Meta(min_length=1, max_length=4)]
ChannelStds = Annotated[tuple[Annotated[float, Meta(ge=1e-6, le=10)], ...], Meta(min_length=1, max_length=4)]


def decode(kind: type[T], content: object, source: str) -> T:
    """Turn JSON content into a record. Errors name ``source`` and the entry; unknown entries are ignored."""
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise FileError(f"{source}: {_explained(str(error), kind, content)}") from None


def _explained(error: str, kind: Any, content: Any) -> str:
    """Add what was given, and the known values of a choice, to a message such as ``Expected `int` - at `$.n` ``."""
    reason, _, path = error.partition(" - at `$")
    path = path.rstrip("`").removeprefix(".")
    if not path:
        return reason
    try:
        for part in re.findall(r"\w+", path):
            content = content[int(part)] if isinstance(content, list | tuple) else content[part]
            hint = get_type_hints(kind).get(part) if dataclasses.is_dataclass(kind) else None
            kind = next((option for option in get_args(hint) if dataclasses.is_dataclass(option)), hint)
    except (LookupError, ValueError, TypeError):
        return error
    known = f"; known are {' '.join(map(str, get_args(kind)))}" if get_origin(kind) is Literal else ""
    shown = "" if isinstance(content, Mapping) else f" is {content!r:.80}"
    return f"{path}{shown}: {reason[:1].lower()}{reason[1:]}{known}"


def encode(record: object) -> dict[str, Any]:
    """Turn a record into JSON content. Numbers that are not finite become null, because JSON cannot hold them."""
    return cast(dict[str, Any], _finite(msgspec.to_builtins(record)))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        may_be_left_out = ("classes", "uncertainty", "terms", "transform")
        return {key: _finite(item) for key, item in value.items() if item or key not in may_be_left_out}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and value - value != 0 else value


@dataclass(frozen=True)
class ClassRecall:
    """One class of a split."""

    name: str
    n: int  # images
    recall: float | None  # fraction of them that is classified correctly; None without images
    n_train: int | None = None  # training images, if they are known


@dataclass(frozen=True)
class Uncertainty:
    """How far a classifier's probabilities can be trusted."""

    calibration_error: float  # expected calibration error over 15 bins
    # The others need several members (heads or networks).
    disagreement: float | None = None  # of the members: the mean over the images, in nats
    split_votes: float | None = None  # fraction of images on which not all members choose the same class
    # How well the disagreement separates errors from correct predictions, from 0.5 (chance) to 1 (perfectly). None also
    # if all predictions are correct or all are wrong.
    error_auroc: float | None = None


@dataclass(frozen=True)
class Score:
    """One classifier on one split."""

    accuracy: float  # fraction of correct predictions
    loss: float | None  # mean cross-entropy; None if it is not finite
    n: int  # images
    passes: int = 1  # forward passes of the backbone per image
    balanced_accuracy: float | None = None  # mean recall of the classes that have images
    present_classes: int | None = None  # how many these are
    zero_recall_classes: int | None = None  # how many of these are never classified correctly
    classes: tuple[ClassRecall, ...] = ()  # only of the pruned classifier (without r0, of the full model)
    uncertainty: Uncertainty | None = None  # only `transnet evaluate` measures it


@dataclass(frozen=True, kw_only=True)
class HeadScore(Score):
    """One head on one split, with the name of its transform."""

    name: str


@dataclass(frozen=True)
class Scores:
    """A network on one split."""

    pruned: Score | None  # the identity head at one pass; None without r0
    full: Score  # the mean of all heads
    heads: tuple[HeadScore, ...]  # in the order of the transforms


@dataclass(frozen=True)
class Cost:
    """Cost of training and prediction, in forward passes of the backbone, operations and parameters."""

    train_passes: int
    predict_passes: int
    parameters: int
    images_per_second: float
    train_flops: int | None = None  # floating-point operations of the whole training, a multiply-add counted as two
    predict_flops: int | None = None  # likewise of the pruned network, for one image


@dataclass(frozen=True)
class SplitSizes:
    """Images in each split; 0 for a split that does not exist."""

    train: int
    val: int
    test: int


@dataclass(frozen=True)
class DataDescription:
    """The dataset as the network saw it."""

    name: str
    classes: ClassNames
    channels: Annotated[int, Meta(ge=1, le=4)]  # 1: grey, 3: colour
    image_size: Annotated[int, Meta(ge=1, le=LARGEST_SIDE)]  # side of the square that the network sees
    stored_size: Side  # side of the square that it is cut out of
    mean: ChannelMeans  # in 0…1
    std: ChannelStds
    flip: bool = False  # whether training flips images horizontally, and tests with and without flip TTA
    pad: int = 0  # pixels of padding before the random crop
    sizes: SplitSizes = SplitSizes(0, 0, 0)
    skipped: tuple[str, ...] = ()  # images that could not be read and were left out
    fingerprint: str = ""  # hash of the images, the labels and the splits
    subset_seed: int | None = None  # chose the training images; None if all of them are used


@dataclass(frozen=True)
class RunSettings:
    """The content of ``config.json``: everything needed to run it again."""

    train: TrainConfig
    data: DataDescription
    schema: Literal[1] = 1


@dataclass(frozen=True)
class EpochEntry:
    """One line of ``metrics.jsonl``."""

    epoch: int  # from 1
    step: int  # since the beginning of the run
    lr: float  # of the epoch's last step
    loss: tuple[float | None, ...]  # training cross-entropy per head, on augmented images
    accuracy: tuple[float | None, ...]  # likewise
    seconds: float  # without evaluation
    images_per_second: float  # every image counts once, whatever the number of heads
    terms: dict[str, float | None] = field(default_factory=dict)  # of the objective, weighted, if there are several
    val: Scores | None = None  # if evaluated after this epoch
    test: Scores | None = None  # likewise, for the curves alone: nothing is selected by them


@dataclass(frozen=True)
class Result:
    """The content of ``result.json``."""

    test: Scores  # on the test images as they are
    test_flip: Scores | None  # with horizontal-flip TTA; None if training does not flip
    val: Scores | None  # None without a validation split
    train: Score | None  # of the identity head on the training images, not augmented, if `generalization` scores them
    generalization: float | None  # test loss divided by training loss, both of the identity head
    cost: Cost
    config: RunSettings
    seconds: float  # the whole run, in all processes that continued it; its parts likewise
    train_seconds: float
    versions: dict[str, str]
    device: str
    command: str  # repeats the run
    commit: str | None
    processes: int = 1
    compile_seconds: float = 0.0
    evaluate_seconds: float = 0.0
    prepare_seconds: float = 0.0
    at_once: int = 1  # runs that shared the device. With more than one, times are not those of a run alone
    precision: str = "fp32"  # or bf16
    threads: int | None = None  # of the CPU, in each process
    allocator: str = ""  # settings of C's allocator; empty for the defaults
    val_flip: Scores | None = None
    model_sha256: str = ""
    schema: Literal[1] = 1
