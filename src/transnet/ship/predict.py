"""Predict the class of image files with any trained model.

transnet predict runs/t2 photos/ --confidence 0.9
"""

import csv
import glob
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, TextIO

import torch
from torch import Tensor

from transnet.console import printable, say
from transnet.data.folder import images_below
from transnet.early_exit import Auto, calibrate_run, run_heads
from transnet.errors import ConfigError, DataError
from transnet.ship.models import Model, open_model

Format = Literal["table", "jsonl", "csv"]


@dataclass(frozen=True)
class Prediction:
    """What a model says of one image.

    Attributes:
        image: its path, ``-`` for standard input.
        label: the class of the highest mean output.
        probability: of that class.
        agreement: share of the heads that ran whose own class it is.
        passes: of the network: the heads that ran.
        heads: the class each of them gave, by transform and in order; a transform that occurs twice is ``r0#2``.
    """

    image: str
    label: str
    probability: float
    agreement: float
    passes: int
    heads: dict[str, str]


def predict_files(
    source: str,
    words: Sequence[str],
    *,
    format: Format,
    out: TextIO,
    confidence: float | Auto | None = None,
    data: str | None = None,
    batch_size: int = 64,
    device: str = "auto",
) -> int:
    """Predict images and write what comes out; the exit status: 1 where an image could not be read, else 0.

    Args:
        source: the model, as `open_model` takes it.
        words: files, folders, globs; ``-`` is the bytes of one image on standard input.
        format: a table at the end, or a line an image as soon as its batch is done.
        out: where to write.
        confidence: run head by head and stop at this certainty, as `anytime` does; `Auto` calibrates it on the run's
            validation split.
        data: where the run's data lies, for `Auto`, where that is not what the run calls it.
        batch_size: images at a time.
        device: where to compute.
    """
    from transnet.train.device import find_device
    from transnet.train.distributed import World

    if not words:
        raise ConfigError("predict: no image given; give files, folders, globs, or - for standard input")
    if batch_size < 1:
        raise ConfigError(f"{batch_size} was given; at least 1 is needed", field="batch_size")
    if words.count("-") > 1:
        raise ConfigError("predict: - is given twice; standard input holds one image, give - once")
    if data is not None and not isinstance(confidence, Auto):
        raise ConfigError(
            f"{data} was given, which only `confidence` auto reads; add that, or leave it out", field="data"
        )
    if "" in words:  # as of a variable that is not set; as a path it would be the folder one stands in
        raise ConfigError("predict: an empty name is given; give files, folders, globs, or - for standard input")
    found = list(find_images(words))
    if all(_is_missing(name) for name in found):
        raise ConfigError(f"predict: {', '.join(map(printable, words))}: no such file or folder")
    model = open_model(source, device=find_device(device, World()))
    if confidence is not None:
        confidence = _threshold(model, confidence, data, device)
    bad: list[str] = []
    predictions = predict(
        model, _shown(_read(model, found, bad), len(found)), confidence=confidence, batch_size=batch_size
    )
    _WRITERS[format](predictions, out)
    if bad and len(found) > 1:  # of a single one the line above says it all
        say(f"transnet: {len(bad)} of {len(found)} images could not be read and were passed over")
    return 1 if bad else 0


def predict(
    model: Model, images: Iterable[tuple[str, Tensor]], *, confidence: float | None = None, batch_size: int = 64
) -> Iterator[Prediction]:
    """Predict a stream of images, batch by batch.

    Args:
        model: what `open_model` returned.
        images: names, and what `Model.prepare` made of each.
        confidence: run head by head and stop at this certainty, as `anytime` does. Needs a model with all its heads.
        batch_size: images at a time.
    """
    if confidence is not None and model.net is None:
        raise ConfigError(f"{_no_heads(model)}", field="confidence")
    stream = iter(images)
    while batch := list(islice(stream, batch_size)):
        x = torch.stack([image for _, image in batch])
        if confidence is not None and model.net is not None:
            device = next(model.net.parameters()).device
            probabilities, votes = (part.cpu() for part in run_heads(model.net, x.to(device), confidence))
        else:
            logits = model.heads(x)
            probabilities, votes = logits.mean(1).softmax(-1), logits.argmax(-1)
        for (name, _), p, vote in zip(batch, probabilities, votes, strict=True):
            yield _prediction(model, name, p, vote.tolist())


def _prediction(model: Model, name: str, p: Tensor, votes: list[int]) -> Prediction:
    classes, top = model.about.classes, int(p.argmax())
    ran = [vote for vote in votes if vote >= 0]
    labels = {key: classes[vote] for key, vote in zip(head_names(model.about.transforms), ran, strict=False)}
    return Prediction(name, classes[top], float(p[top]), ran.count(top) / len(ran), len(ran), labels)


def head_names(transforms: Sequence[str]) -> list[str]:
    """One name a head: a transform's second head is ``r0#2``."""
    seen: dict[str, int] = {}
    names = []
    for name in transforms:
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return names


def _threshold(model: Model, confidence: float | Auto, data: str | None, device: str) -> float:
    if model.net is None:
        raise ConfigError(f"{_no_heads(model)}", field="confidence")
    if not isinstance(confidence, Auto):
        if not 0 <= confidence <= 1:
            raise ConfigError(f"{confidence} was given; a number from 0 to 1 is needed, or auto", field="confidence")
        return confidence
    if not (Path(model.source) / "metrics.jsonl").is_file():
        raise ConfigError(f"`confidence` auto: {model.source} is no run, so it has no validation split; give a number")
    within, passes = confidence.within, confidence.passes
    chosen = calibrate_run(model.source, within=within, passes=passes, data=data, device=device)
    say(str(chosen))
    if chosen.within is not None and 100 / chosen.n > chosen.within:
        say(
            f"warning: one of {chosen.n:,} validation images is {100 / chosen.n:.2f} points already, so chance decides "
            "the threshold; train with a larger --val-fraction, or give a number"
        )
    return chosen.confidence


def _no_heads(model: Model) -> str:
    if len(model.about.transforms) > 1:
        return f"{model.source} runs its heads at once; give the run, or one exported as safetensors with --head all"
    return f"{model.source} has one head, so there is nothing to stop early; give the run itself"


def find_images(words: Iterable[str]) -> Iterator[str]:
    """Paths of the images that files, folders (however deep) and globs stand for; ``-`` stays.

    What does not exist stays too, for whoever reads it to report.
    """
    for word in words:
        path = Path(os.path.expanduser(word))
        if word == "-":
            yield word
        elif not os.path.exists(path) and glob.has_magic(word):
            matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
            # ** matches a folder and also what is in it
            yield from dict.fromkeys(image for match in matches for image in _inside(match)) or [word]
        else:
            yield from _inside(path)


def _inside(path: Path) -> list[str]:
    """The images in a folder, or the folder itself where it has none; else the path."""
    if not os.path.isdir(path):
        return [str(path)]
    return [str(path / name) for name in images_below(path)] or [str(path)]


def _is_missing(name: str) -> bool:
    """Whether there is nothing of that name; what may not be looked at is reported when it is read."""
    try:
        if name != "-":
            os.stat(name)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def _read(model: Model, found: Sequence[str], bad: list[str]) -> Iterator[tuple[str, Tensor]]:
    for name in found:
        try:
            if os.path.isdir(name):
                os.listdir(name)  # fails where the folder is one that may not be looked into
                raise DataError("a folder without images in it")
            encoded = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
            image = model.prepare(encoded)
        except (DataError, OSError, ValueError) as error:
            _report(name, error, bad)
        else:
            yield name, image


def _report(name: str, error: Exception, bad: list[str]) -> None:
    bad.append(name)
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    say(f"transnet: {printable(name)}: {printable(reason)}")


def _shown(images: Iterable[tuple[str, Tensor]], total: int) -> Iterator[tuple[str, Tensor]]:
    """The same images, counted in a bar where standard error is a terminal and there are many."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty() or total < 100) as bar:
        task = bar.add_task("predicting", total=total)
        for image in images:
            yield image
            bar.advance(task)


def _write_table(predictions: Iterable[Prediction], out: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column in ("image", "class", "probability", "heads that agree"):
        table.add_column(column, justify="left" if column in ("image", "class") else "right")
    for p in predictions:
        agree = f"{round(p.agreement * p.passes)} of {p.passes}"
        table.add_row(Text(printable(p.image)), Text(printable(p.label)), f"{p.probability:.4f}", agree)
    if table.row_count:
        Console(file=out).print(table)


def _write_jsonl(predictions: Iterable[Prediction], out: TextIO) -> None:
    for prediction in predictions:
        entry = {("class" if key == "label" else key): value for key, value in asdict(prediction).items()}
        text = json.dumps(entry, ensure_ascii=False)
        # A file's name may steer a terminal, end a line or be no UTF-8: such characters stay escaped.
        print("".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text), file=out, flush=True)


def _write_csv(predictions: Iterable[Prediction], out: TextIO) -> None:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["image", "class", "probability", "agreement", "passes"])
    for p in predictions:
        image, label = (
            name.encode(errors="replace").decode() for name in (p.image, p.label)
        )  # a file's need not be UTF-8
        writer.writerow([image, label, f"{p.probability:.6f}", f"{p.agreement:.4f}", p.passes])
        out.flush()


_WRITERS = {"table": _write_table, "jsonl": _write_jsonl, "csv": _write_csv}
