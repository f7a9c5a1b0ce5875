"""``transnet predict``."""

import csv
import dataclasses
import io
import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from transnet.arguments import Positional, argument
from transnet.cli.options import Device, OwnTransforms, parse
from transnet.console import print_table, printable, progress_bar, say
from transnet.errors import ConfigError, FileError

if TYPE_CHECKING:
    from transnet.ship.predict import Prediction


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
    transform: OwnTransforms = ()
    device: Device = "auto"


def main(arguments: Sequence[str]) -> int:
    """Print a line for each image, and return 1 if one could not be read."""
    options = parse(Options, "predict", arguments)
    given, batch_size = options.images, options.batch_size
    if not given or "" in given:  # an unset variable; as a path it would mean the current directory
        problem = "an empty name" if given else "none"
        raise ConfigError(f"{problem} was given; give files, folders, globs, or - for standard input", field="images")
    if given.count("-") > 1:
        raise ConfigError("- was given twice, but standard input holds one image", field="images")
    if batch_size < 1:
        raise ConfigError(f"{batch_size} was given; at least 1 is needed", field="batch_size")
    confidence = _confidence(options)
    from transnet.ship.models import open_model
    from transnet.ship.predict import choose_threshold, find_images, is_missing, net_with_heads, predict, read_images

    names = list(find_images(given))
    if all(map(is_missing, names)):
        raise FileError(f"{', '.join(map(printable, given))}: no such file or folder", field="images")
    model = open_model(options.model, device=options.device, transform=options.transform)
    if confidence is not None:
        net_with_heads(model)
    if confidence == "auto":
        within = 0.1 if options.within is None else options.within
        confidence = choose_threshold(
            options.model, within=within, passes=options.passes, data=options.data, device=options.device,
            transform=options.transform,
        )  # fmt: skip
    format = options.format or ("table" if sys.stdout.isatty() else "jsonl")
    if format != "table" and isinstance(sys.stdout, io.TextIOWrapper):
        # Not the terminal's encoding, because programs read these lines. The name of a file need not be valid UTF-8.
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    failed: list[str] = []
    with progress_bar(shown=len(names) >= 100) as bar:
        images = read_images(model, bar.track(names, description="predicting"), failed)
        _WRITERS[format](predict(model, images, confidence=confidence, batch_size=batch_size))
    if failed and len(names) > 1:
        say(f"transnet: {len(failed)} of {len(names)} images could not be read and were skipped")
    return 1 if failed else 0


def _confidence(options: Options) -> float | Literal["auto"] | None:
    """Check the options of early exit, and return its threshold if it is known."""
    from transnet.early_exit import check_confidence

    if options.within is not None and options.passes is not None:
        raise ConfigError("both are targets for `confidence` auto; give only one of `within` and `passes`")
    if options.confidence == "auto":
        return "auto"
    for name in ("within", "passes", "data"):
        if getattr(options, name) is not None:
            raise ConfigError("only `confidence` auto uses it; add that, or leave it out", field=name)
    if options.confidence is None:
        return None
    # Parsed here, because for a union of types the parser's error names Python's types.
    try:
        confidence = float(options.confidence)
    except ValueError:
        problem = f"{options.confidence!r} was given; a number from 0 to 1 is needed, or auto"
        raise ConfigError(problem, field="confidence") from None
    check_confidence(confidence)
    return confidence


def _write_table(predictions: "Iterable[Prediction]") -> None:
    rows = [
        (p.image, p.label, f"{p.probability:.4f}", f"{round(p.agreement * p.passes)} of {p.passes}")
        for p in predictions
    ]
    if rows:
        print_table(["image", "class", "probability", "heads that agree"], rows, left=["class"])


def _write_jsonl(predictions: "Iterable[Prediction]") -> None:
    for prediction in predictions:
        entry = {("class" if key == "label" else key): value for key, value in vars(prediction).items()}
        text = json.dumps(entry, ensure_ascii=False)
        # The name of a file can contain control characters or invalid UTF-8: these stay escaped.
        print("".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text), flush=True)


def _write_csv(predictions: "Iterable[Prediction]") -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["image", "class", "probability", "agreement", "passes"])
    for p in predictions:
        writer.writerow([p.image, p.label, f"{p.probability:.6f}", f"{p.agreement:.4f}", p.passes])
        sys.stdout.flush()


_WRITERS = {"table": _write_table, "jsonl": _write_jsonl, "csv": _write_csv}
