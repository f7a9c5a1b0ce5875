"""``transnet predict``."""

import dataclasses
import io
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from transnet.arguments import Positional, argument
from transnet.cli.options import parse
from transnet.errors import ConfigError

if TYPE_CHECKING:
    from transnet.ship.thresholds import Target


@dataclasses.dataclass(frozen=True)
class Options:
    """Predict the class of images, with its probability and the number of heads that agree.

    MODEL is a run, a folder that transnet prune wrote, an .onnx file, or hf:owner/name. An image that cannot be read is
    reported and skipped. The exit status is then 1, or 2 if none of the paths exists.

    Example: transnet predict runs/t2 photos/ --confidence 0.9
    """

    model: Annotated[Positional[str], argument(metavar="MODEL")]
    """The trained model."""
    images: Annotated[Positional[tuple[str, ...]], argument(metavar="IMAGE…")]
    """Files, folders, globs; - reads one image from standard input."""
    confidence: Annotated[str | None, argument(metavar="0…1|auto")] = None
    """Early exit: run the heads one by one, and stop when the class is preferred to its runner-up with this
    probability. auto: the lowest value that stays within 0.1 points of all heads on the run's validation split."""
    within: float | None = None
    """For --confidence auto: percentage points of accuracy that may be lost, instead of 0.1."""
    passes: float | None = None
    """For --confidence auto, instead of --within: heads per image that may be used on average, such as 1.4."""
    data: str | None = None
    """The run's own data, for --confidence auto, if it is not where the run found it."""
    format: Literal["table", "jsonl", "csv"] | None = None
    """Output format. Default: a table on a terminal, JSON lines otherwise."""
    batch_size: int = 64
    """Images at a time."""
    device: str = "auto"
    """cpu, cuda, cuda:1, or auto: a GPU if there is one."""


def main(arguments: Sequence[str]) -> int:
    """Print a line for each image."""
    options = parse(Options, "predict", arguments)
    confidence = _confidence(options)
    from transnet.ship.predict import predict_files

    format = options.format or ("table" if sys.stdout.isatty() else "jsonl")
    if format != "table" and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # not the terminal's encoding, because programs read these lines
    return predict_files(
        options.model, options.images, format=format, out=sys.stdout, confidence=confidence,
        data=options.data, batch_size=options.batch_size, device=options.device,
    )  # fmt: skip


def _confidence(options: Options) -> "float | Target | None":
    if options.within is not None and options.passes is not None:
        raise ConfigError("both are targets for `confidence` auto; give only one of `within` and `passes`")
    targets = {"within": options.within, "passes": options.passes}
    given = {name: value for name, value in targets.items() if value is not None}
    if options.confidence == "auto":
        from transnet.ship.thresholds import Target

        return Target(**given)
    for name in given:
        raise ConfigError("only `confidence` auto uses it; add that, or leave it out", field=name)
    # Parsed here, because for a union of types the parser's error names Python's types.
    try:
        return None if options.confidence is None else float(options.confidence)
    except ValueError:
        raise ConfigError(
            f"{options.confidence!r} was given; a number from 0 to 1 is needed, or auto", field="confidence"
        ) from None
