"""Predict the classes of image files with any trained model.

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

from transnet.console import printable, progress_bar, say
from transnet.data.folder import images_below
from transnet.early_exit import check_confidence, run_heads
from transnet.errors import ConfigError, DataError, FileError
from transnet.model import TransNet
from transnet.ship.models import Model, open_model
from transnet.ship.thresholds import Target, choose_threshold

Format = Literal["table", "jsonl", "csv"]


@dataclass(frozen=True)
class Prediction:
    """A model's prediction for one image.

    Attributes:
        image: the image's path, ``-`` for standard input.
        label: the class with the highest mean output.
        probability: of that class.
        agreement: fraction of the heads that ran and chose that class.
        passes: number of heads that ran, each one pass of the network.
        heads: the class that each of them chose, by transform; a second head of a transform is called ``r0#2``.
    """

    image: str
    label: str
    probability: float
    agreement: float
    passes: int
    heads: dict[str, str]


def predict_files(
    source: str,
    paths: Sequence[str],
    *,
    format: Format,
    out: TextIO,
    confidence: float | Target | None = None,
    data: str | None = None,
    batch_size: int = 64,
    device: str = "auto",
) -> int:
    """Predict images and write the predictions. Return the exit status: 1 if an image could not be read, else 0.

    Args:
        source: the model, as `open_model` takes it.
        paths: files, folders, globs; ``-`` reads one image from standard input.
        format: a table at the end, or a line per image as soon as its batch is done.
        out: where to write.
        confidence: the threshold for early exit; for a `Target` it is chosen on the run's validation split.
        data: the run's data, if it is not where the run found it; only a `Target` needs it.
        batch_size: images at a time.
        device: where to compute.
    """
    if not paths:
        raise ConfigError("none was given; give files, folders, globs, or - for standard input", field="images")
    if batch_size < 1:
        raise ConfigError(f"{batch_size} was given; at least 1 is needed", field="batch_size")
    if paths.count("-") > 1:
        raise ConfigError("- was given twice, but standard input holds one image", field="images")
    if data is not None and not isinstance(confidence, Target):
        raise ConfigError(f"{data} was given, which only `confidence` auto needs; add that, or omit it", field="data")
    if "" in paths:  # an unset variable; as a path it would mean the current directory
        raise ConfigError(
            "an empty name was given; give files, folders, globs, or - for standard input", field="images"
        )
    found = list(find_images(paths))
    if all(_is_missing(name) for name in found):
        raise FileError(f"{', '.join(map(printable, paths))}: no such file or folder", field="images")
    model = open_model(source, device=device)
    threshold = _threshold(model, confidence, data, device)
    failed: list[str] = []
    with progress_bar(shown=len(found) >= 100) as bar:
        images = _read(model, bar.track(found, description="predicting"), failed)
        _WRITERS[format](predict(model, images, confidence=threshold, batch_size=batch_size), out)
    if failed and len(found) > 1:
        say(f"transnet: {len(failed)} of {len(found)} images could not be read and were skipped")
    return 1 if failed else 0


def predict(
    model: Model, images: Iterable[tuple[str, Tensor]], *, confidence: float | None = None, batch_size: int = 64
) -> Iterator[Prediction]:
    """Predict a stream of images, batch by batch.

    Args:
        model: from `open_model`.
        images: pairs of a name and an image from `Model.prepare`.
        confidence: the threshold for early exit, as for `anytime`. The model must have all its heads.
        batch_size: images at a time.
    """
    net = None if confidence is None else _with_heads(model)
    stream = iter(images)
    while batch := list(islice(stream, batch_size)):
        x = torch.stack([image for _, image in batch])
        if net is None or confidence is None:
            logits = model.heads(x)
            probabilities, votes = logits.mean(1).softmax(-1), logits.argmax(-1)
        else:
            x = x.to(next(net.parameters()).device)
            probabilities, votes = (tensor.cpu() for tensor in run_heads(net, x, confidence))
        for (name, _), p, vote in zip(batch, probabilities, votes, strict=True):
            yield _prediction(model, name, p, vote.tolist())


def _prediction(model: Model, name: str, p: Tensor, votes: list[int]) -> Prediction:
    classes, top = model.about.classes, int(p.argmax())
    ran = [vote for vote in votes if vote >= 0]
    heads = {key: classes[vote] for key, vote in zip(head_names(model.about.transforms), ran, strict=False)}
    return Prediction(name, classes[top], float(p[top]), ran.count(top) / len(ran), len(ran), heads)


def head_names(transforms: Sequence[str]) -> list[str]:
    """Give each head its own name: the second head of r0 is called ``r0#2``."""
    counts = [transforms[: i + 1].count(name) for i, name in enumerate(transforms)]
    return [name if n == 1 else f"{name}#{n}" for name, n in zip(transforms, counts, strict=True)]


def _threshold(model: Model, confidence: float | Target | None, data: str | None, device: str) -> float | None:
    if confidence is None:
        return None
    _with_heads(model)
    if not isinstance(confidence, Target):
        check_confidence(confidence)
        return confidence
    if not (Path(model.source) / "metrics.jsonl").is_file():
        raise ConfigError(f"{model.source} is no run, so it has no validation split; give a number", field="confidence")
    chosen = choose_threshold(model.source, confidence, data=data, device=device)
    say(str(chosen))
    if confidence.passes is None and 100 / chosen.n > confidence.within:
        say(
            f"warning: one of {chosen.n:,} validation images is {100 / chosen.n:.2f} points, so the threshold depends "
            "on chance; train with a larger validation split, or give a number"
        )
    return chosen.confidence


def _with_heads(model: Model) -> TransNet:
    """The network, if it can run its heads one by one."""
    if model.net is not None:
        return model.net
    if len(model.about.transforms) > 1:
        reason = "runs its heads at once; give the run, or one exported as safetensors with `head` all"
    else:
        reason = "has one head, so there is nothing to stop early; give the run itself"
    raise ConfigError(f"{model.source} {reason}", field="confidence")


# ---------------------------------------------------------------------------------------------------- reading images


def find_images(paths: Iterable[str]) -> Iterator[str]:
    """Find the images that files, folders (with their subfolders) and globs refer to.

    ``-`` and paths that do not exist are kept, so that reading them reports the error.
    """
    for word in paths:
        path = Path(os.path.expanduser(word))
        if word == "-":
            yield word
        elif not os.path.exists(path) and glob.has_magic(word):
            matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
            # ** matches both a folder and the files in it
            yield from dict.fromkeys(image for match in matches for image in _inside(match)) or [word]
        else:
            yield from _inside(path)


def _inside(path: Path) -> list[str]:
    """The images in a folder, or the path itself if it is no folder or has no images."""
    if not os.path.isdir(path):
        return [str(path)]
    return [str(path / name) for name in images_below(path)] or [str(path)]


def _is_missing(name: str) -> bool:
    """Whether no file or folder has this name. One without permission counts as present: reading it reports why."""
    try:
        if name != "-":
            os.stat(name)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def _read(model: Model, names: Iterable[str], failed: list[str]) -> Iterator[tuple[str, Tensor]]:
    """Read and prepare images; report those that cannot be read and add them to ``failed``."""
    for name in names:
        try:
            if os.path.isdir(name):
                os.listdir(name)  # raises if the folder may not be read
                raise DataError("a folder without images in it")
            encoded = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
            image = model.prepare(encoded)
        except (OSError, ValueError) as error:
            failed.append(name)
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            say(f"transnet: {printable(name)}: {printable(reason)}")
        else:
            yield name, image


# ----------------------------------------------------------------------------------------------- writing predictions


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
        # The name of a file can contain control characters or invalid UTF-8: these stay escaped.
        print("".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text), file=out, flush=True)


def _write_csv(predictions: Iterable[Prediction], out: TextIO) -> None:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["image", "class", "probability", "agreement", "passes"])
    for p in predictions:
        # The name of a file need not be valid UTF-8.
        image, label = (name.encode(errors="replace").decode() for name in (p.image, p.label))
        writer.writerow([image, label, f"{p.probability:.6f}", f"{p.agreement:.4f}", p.passes])
        out.flush()


_WRITERS = {"table": _write_table, "jsonl": _write_jsonl, "csv": _write_csv}
