"""What a run leaves on disk, as typed records.

`decode` is the one way from JSON to a record, and `encode` the one way back. A run's folder holds

- ``config.json``: `RunSettings`
- ``metrics.jsonl``: one `EpochEntry` per line
- ``result.json``: `Result`
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from transnet.errors import FileError
from transnet.runs.config import LARGEST_SIDE, TrainConfig

T = TypeVar("T")

# Larger values are refused, because each of these sizes something before the weights have been compared with it.
MOST_CLASSES = 100_000
ClassNames = Annotated[tuple[Annotated[str, Meta(max_length=1000)], ...], Meta(min_length=1, max_length=MOST_CLASSES)]
Side = Annotated[int, Meta(ge=1, le=2 * LARGEST_SIDE)]
ChannelMeans = Annotated[tuple[Annotated[float, Meta(ge=-10, le=10)], ...], Meta(min_length=1, max_length=4)]
ChannelStds = Annotated[tuple[Annotated[float, Meta(ge=1e-6, le=10)], ...], Meta(min_length=1, max_length=4)]


def decode(kind: type[T], content: object, source: str) -> T:
    """Turn JSON content into a record. Entries that the record does not have are ignored.

    Args:
        kind: the dataclass.
        content: what `json.loads` returned.
        source: the file, for the error message.

    Raises:
        FileError: if an entry is missing or has the wrong type or range; the message names the entry.
    """
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise FileError(f"{source}: {_explained(str(error), kind, content)}") from None


def _explained(error: str, kind: Any, content: Any) -> str:
    """Add what was given, and the known values of a choice, to a message such as ``Expected `int` - at `$.n` ``."""
    reason, _, path = error.partition(" - at `$")
    path = path.rstrip("`").removeprefix(".")
    try:
        for part in re.findall(r"\w+", path):
            content = content[int(part)] if isinstance(content, list | tuple) else content[part]
            hint = get_type_hints(kind).get(part) if dataclasses.is_dataclass(kind) else None
            kind = next((option for option in get_args(hint) if dataclasses.is_dataclass(option)), hint)
    except (KeyError, IndexError, ValueError, TypeError):
        return error
    if not path:
        return reason
    known = f"; known are {' '.join(map(str, get_args(kind)))}" if get_origin(kind) is Literal else ""
    shown = "" if isinstance(content, Mapping) else f" is {content!r:.80}"
    return f"{path}{shown}: {reason[:1].lower()}{reason[1:]}{known}"


def encode(record: object) -> dict[str, Any]:
    """Turn a record into JSON content. Numbers that are not finite become null, because JSON cannot hold them.

    The entries ``classes``, ``uncertainty`` and ``terms`` are left out if they are empty.
    """
    content: dict[str, Any] = _finite(msgspec.to_builtins(record))
    return content


_OPTIONAL = {"classes", "uncertainty", "terms"}


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items() if item or key not in _OPTIONAL}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and value - value != 0 else value


# ------------------------------------------------------------------------------------------------------------ scores


@dataclass(frozen=True)
class ClassRecall:
    """One class of a split.

    Attributes:
        name: the class.
        n: its images in the split.
        recall: fraction of them that are classified correctly; None without images.
        n_train: its training images; None if they are not known.
    """

    name: str
    n: int
    recall: float | None
    n_train: int | None = None


@dataclass(frozen=True)
class Uncertainty:
    """How far a classifier's probabilities can be trusted.

    Attributes:
        calibration_error: expected calibration error over 15 bins.
        disagreement: of the classifier's members (heads or networks), the mean over the images, in nats; None for a
            single one. The same applies to the next two.
        split_votes: fraction of images on which not all members choose the same class.
        error_auroc: how well the disagreement separates errors from correct predictions: 0.5 is chance, 1 is perfect.
            None also if all predictions are correct or all wrong.
    """

    calibration_error: float
    disagreement: float | None = None
    split_votes: float | None = None
    error_auroc: float | None = None


@dataclass(frozen=True)
class Score:
    """One classifier on one split.

    Attributes:
        accuracy: fraction of correct predictions.
        loss: mean cross-entropy; None if it is not finite.
        n: number of images.
        passes: forward passes of the backbone per image.
        balanced_accuracy: mean recall of the classes that have images.
        present_classes: how many classes have images.
        zero_recall_classes: how many of these are never classified correctly.
        classes: every class, for the pruned classifier (without r0, for the full model).
        uncertainty: only `transnet evaluate` measures it.
    """

    accuracy: float
    loss: float | None
    n: int
    passes: int = 1
    balanced_accuracy: float | None = None
    present_classes: int | None = None
    zero_recall_classes: int | None = None
    classes: tuple[ClassRecall, ...] = ()
    uncertainty: Uncertainty | None = None


@dataclass(frozen=True, kw_only=True)
class HeadScore(Score):
    """One head on one split, with the name of its transform."""

    name: str


@dataclass(frozen=True)
class Scores:
    """A network on one split.

    Attributes:
        pruned: the identity head at one pass; None without r0.
        full: the mean of all heads.
        heads: each head alone, in the order of the transforms.
    """

    pruned: Score | None
    full: Score
    heads: tuple[HeadScore, ...]


@dataclass(frozen=True)
class Cost:
    """What training and prediction cost, in forward passes of the backbone and in parameters."""

    train_passes: int
    predict_passes: int
    parameters: int
    images_per_second: float


# ---------------------------------------------------------------------------------------------------------- settings


@dataclass(frozen=True)
class SplitSizes:
    """Images in each split; 0 for a split that does not exist."""

    train: int
    val: int
    test: int


@dataclass(frozen=True)
class DataDescription:
    """The data set as the network saw it.

    Attributes:
        name: what the data set is called.
        classes: the labels' names, in order.
        channels: 1 for grey images, 3 for colour.
        image_size: side of the square that the network sees.
        stored_size: side of the square that it is cut out of.
        mean: of each channel, in 0…1.
        std: likewise.
        flip: whether training flips images horizontally, and the test averages over both.
        pad: pixels of padding before the random crop.
        sizes: images per split.
        skipped: images that could not be read and were left out.
        fingerprint: hash of the images, the labels and the splits.
    """

    name: str
    classes: ClassNames
    channels: Annotated[int, Meta(ge=1, le=4)]
    image_size: Annotated[int, Meta(ge=1, le=LARGEST_SIDE)]
    stored_size: Side
    mean: ChannelMeans
    std: ChannelStds
    flip: bool = False
    pad: int = 0
    sizes: SplitSizes = SplitSizes(0, 0, 0)
    skipped: tuple[str, ...] = ()
    fingerprint: str = ""


@dataclass(frozen=True)
class RunSettings:
    """The content of ``config.json``: everything needed to run it again."""

    train: TrainConfig
    data: DataDescription
    schema: Literal[1] = 1


# ----------------------------------------------------------------------------------------------------------- results


@dataclass(frozen=True)
class EpochEntry:
    """One line of ``metrics.jsonl``.

    Attributes:
        epoch: counted from 1.
        step: steps since the beginning of the run.
        lr: the learning rate of the epoch's last step.
        loss: training cross-entropy per head, on augmented images.
        accuracy: training accuracy per head, likewise.
        seconds: duration of the epoch without evaluation.
        images_per_second: training images per second; every image counts once, whatever the number of heads.
        terms: the objective's terms, weighted, if it has more than one.
        val: scores on the validation split, if they were computed after this epoch.
        test: scores on the test split, likewise. They are for the curves alone; nothing is selected by them.
    """

    epoch: int
    step: int
    lr: float
    loss: tuple[float | None, ...]
    accuracy: tuple[float | None, ...]
    seconds: float
    images_per_second: float
    terms: dict[str, float | None] = field(default_factory=dict)
    val: Scores | None = None
    test: Scores | None = None


@dataclass(frozen=True)
class Result:
    """The content of ``result.json``.

    Attributes:
        test: scores on the test images as they are.
        test_flip: the same with horizontal-flip TTA; None if training does not flip.
        val: scores on the validation split; None without one.
        val_flip: likewise with flip TTA.
        train: the identity head on the training images, not augmented.
        generalization: test loss divided by training loss, both of the identity head.
        cost: passes and parameters.
        config: the run's settings.
        seconds: the whole run, in all processes that continued it.
        train_seconds: training alone; the other parts likewise.
        at_once: runs that shared the device. With more than one, times are not those of a run alone.
        versions: of the packages that the run used.
        device: the device's name.
        precision: ``fp32`` or ``bf16``.
        processes: number of training processes.
        command: the command that repeats the run.
        commit: the commit of the source code, if known.
        model_sha256: hash of ``model.safetensors``.
    """

    test: Scores
    test_flip: Scores | None
    val: Scores | None
    train: Score | None
    generalization: float | None
    cost: Cost
    config: RunSettings
    seconds: float
    train_seconds: float
    versions: dict[str, str]
    device: str
    command: str
    commit: str | None
    processes: int = 1
    compile_seconds: float = 0.0
    evaluate_seconds: float = 0.0
    prepare_seconds: float = 0.0
    at_once: int = 1
    precision: str = "fp32"
    val_flip: Scores | None = None
    model_sha256: str = ""
    schema: Literal[1] = 1
