"""``transnet predict``."""

import dataclasses
import io
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

if TYPE_CHECKING:
    from transnet.early_exit import Auto


@dataclasses.dataclass(frozen=True)
class Options:
    """Predict the class of images: its probability, and how many heads agree.

    MODEL is a run, a folder that transnet prune made, an .onnx file, or hf:owner/name. An image that cannot be read is
    reported and passed over; the exit status is then 1, or 2 where none of the paths exists.

    Example: transnet predict runs/t2 photos/ --confidence 0.9
    """

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """The trained model."""
    images: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="IMAGE…")]
    """Files, folders, globs; - reads one image from standard input."""
    confidence: Annotated[str | None, tyro.conf.arg(metavar="0…1|auto")] = None
    """Anytime prediction: run head by head, and stop when the class is preferred to its runner-up with this
    probability. auto: the lowest that stays within 0.1 points of all heads on the run's validation split."""
    within: float | None = None
    """For --confidence auto: other percentage points of accuracy that may be lost."""
    passes: float | None = None
    """For --confidence auto, instead: heads per image, on average, that may be spent, such as 1.4."""
    data: str | None = None
    """Where the run's own data lies now, for --confidence auto. None: where it was."""
    format: Literal["table", "jsonl", "csv"] | None = None
    """None: a table on a terminal, JSON lines elsewhere."""
    batch_size: int = 64
    """Images at a time."""
    device: str = "auto"
    """cpu, cuda, … auto: a GPU where there is one."""


def run(arguments: Sequence[str]) -> int:
    """Print a line for each image."""
    options = tyro.cli(Options, prog="transnet predict", args=list(arguments))
    confidence = _confidence(options)
    from transnet.ship.predict import predict_files

    format = options.format or ("table" if sys.stdout.isatty() else "jsonl")
    if format != "table" and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # whatever the terminal's own: these lines are read by programs
    return predict_files(
        options.model, options.images, format=format, out=sys.stdout, confidence=confidence,
        data=options.data, batch_size=options.batch_size, device=options.device,
    )  # fmt: skip


def _confidence(options: Options) -> "float | Auto | None":
    given, targets = options.confidence, (("within", options.within), ("passes", options.passes))
    target = {name: value for name, value in targets if value is not None}
    if len(target) > 1:
        raise ValueError("--within, --passes: each is a target for --confidence auto; give one of them")
    if given == "auto":
        from transnet.early_exit import Auto

        return Auto(**target)
    for name in target:
        raise ValueError(f"--{name}: only --confidence auto reads it; add that, or leave it out")
    # Read here: of a union of types tyro says which of them Python could not make of the word.
    try:
        return given if given is None else float(given)
    except ValueError:
        raise ValueError(f"--confidence: {given!r} was given; a number from 0 to 1 is needed, or auto") from None
