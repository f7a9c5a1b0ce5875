"""Write a run as a model for others, and compare the written file with the run before reporting success.

    safetensors    model.safetensors under the network's own names
    onnx           model.onnx for ONNX Runtime: any batch size, with the full model's transforms inside the graph
    pt2            model.pt2 for torch.export; it is only written, because loading such a file can run code in it

Every format carries its classes and preprocessing, also in a config.json next to it.
"""

import json
import logging
import math
import os
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from transnet import d4
from transnet.console import first_line
from transnet.errors import ConfigError, DataError, FileError, OperationError
from transnet.model import TransNet
from transnet.runs.description import PREPROCESSING, Description
from transnet.runs.files import write_atomically, write_tensors
from transnet.runs.folder import Run, load
from transnet.ship.models import Model, open_model
from transnet.ship.onnx import write_onnx
from transnet.train.evaluate_runs import some_images

Format = Literal["safetensors", "onnx", "pt2"]
Heads = Callable[[Tensor], Tensor]  # normalised images → logits (B, m, K), computed from a written file
_TOLERANCE = 1e-4  # of the largest logit: differences from the order of float32 sums are smaller
_IMAGES = 64


class ExportError(OperationError):
    """A model could not be written such that it gives the same outputs. No file is left behind."""


@dataclass(frozen=True)
class Export:
    """What was written, and how it compares with the run."""

    file: Path  # the model
    about: Description
    difference: float  # the largest difference between a logit and the run's own
    same: float  # fraction of the images with the same class
    images: int  # number of images compared
    real: bool  # whether these are images of the run's test split; noise is used if its data is not there


def export_run(
    path: str | Path, out: str | Path, *, head: str = "r0", format: Format = "safetensors",
    transform: str | Sequence[str] = (),
) -> Export:  # fmt: skip
    """Write a finished run's model to the new folder ``out``, load it again, and compare it with the run.

    For ``head`` and ``transform`` see `network_of_run`. An ExportError says that the written model gives other outputs.
    """
    target = Path(out).absolute()
    if target.resolve() == Path.cwd():
        raise ConfigError(f"{target} is the current folder; give a new one", field="out")
    if os.path.exists(target) and (not target.is_dir() or any(target.iterdir())):  # unlike Path.exists, never raises
        raise ConfigError(f"{target} exists; give another folder", field="out")
    network, about = network_of_run(path, head, transform)
    if format != "safetensors" and about.transform:
        own = ", ".join(about.transform)
        problem = f"{format} holds no functions of your own, and this run has {own}; use safetensors, or keep one head"
        raise ConfigError(problem, field="format")
    images, real = _images(path, network, about)
    pruned = about.kind == "pruned"
    net = load(path, transform=None).keep(*about.transforms) if pruned else load(path, transform=transform)
    with torch.no_grad():
        wanted = net.logits(images)
    partial = target.with_name(f"{target.name}.{secrets.token_hex(4)}.partial")
    try:
        partial.mkdir(parents=True)
        written = write_model(network, about, partial, format, transform)
        with torch.no_grad():
            given = torch.cat([written(images[:1]), written(images[1:])])  # two batch sizes
        difference = float((given - wanted).abs().max())
        bound = _TOLERANCE * max(1.0, float(wanted.abs().max()))
        if not difference <= bound:  # also true for NaN
            raise ExportError(f"the written model's outputs differ: a logit by {difference:.2g} (≤ {bound:.2g})")
        if target.exists():
            target.rmdir()
        os.replace(partial, target)
    except OSError as error:
        reason = error.strerror or error  # without the name of the partial folder, which the user does not know
        raise ConfigError(f"{target} cannot be written ({reason}); give another folder", field="out") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    same = float((given.mean(1).argmax(-1) == wanted.mean(1).argmax(-1)).float().mean())
    return Export(Path(out) / f"model.{format}", about, difference, same, len(images), real)


def network_of_run(
    path: str | Path, head: str = "r0", transform: str | Sequence[str] | None = ()
) -> tuple[nn.Module, Description]:
    """Return the network to ship of a finished run, in evaluation mode on the CPU, and its description.

    ``head`` is the head to keep. The transform of any head but r0 is folded into the weights, which ties the network to
    the run's image size. ``best`` keeps the head with the lowest validation loss (one chosen on the test set would
    flatter its results), and ``all`` the whole TransNet, for which ``transform`` is as for `load`.
    """
    run = Run(path)
    about = Description.of_run(run.settings(), str(run.config))
    val = run.result().val if run.finished or head == "best" else None
    if head == "best":
        if not val:
            problem = "has no validation split to choose the best by; train with `val_fraction` 0.1, or name a head"
            raise ConfigError(f"{run.path} {problem}", field="head")
        # Only the first head of a transform can be kept, and none of the user's own transforms can be folded.
        first = {score.name: score for score in reversed(val.heads) if score.name in d4.NAMES}
        if not first:
            raise ConfigError(f"{run.path} has no head that can be pruned to; known is all", field="head")
        head = min(first.values(), key=lambda score: math.inf if score.loss is None else score.loss).name
    if head == "all":
        return load(path, transform=transform), about
    if head not in about.transforms:
        problem = f"{run.path} has no identity head r0" if head == "r0" else f"unknown {head!r}"  # r0 is the default
        known = " ".join([*(["best"] if val else []), "all", *dict.fromkeys(about.transforms)])
        raise ConfigError(f"{problem}; known are {known}", field="head")
    network = load(path, transform=None).prune(head, image_size=about.image_size)
    fold = head != "r0"
    pruned = replace(about, kind="pruned", transforms=(head,), heads="separate", bn="joint", fold=fold, transform=())
    return network.eval(), pruned


def _images(path: str | Path, network: nn.Module, about: Description) -> tuple[Tensor, bool]:
    model = Model.of(network, about, str(path))
    try:
        pixels, real = some_images(str(path), _IMAGES), True
    except (DataError, OSError):
        shape = (_IMAGES, about.stored_size, about.stored_size, about.channels)
        pixels, real = list(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)), False
    return torch.stack([model.normalise(model.crop(image)) for image in pixels]), real


def write_model(
    network: nn.Module, about: Description, folder: Path, format: Format = "safetensors", transform: Sequence[str] = ()
) -> Heads:
    """Write a network and its ``config.json`` to an existing folder, and return the written file's logits."""
    content = {**about.to_dict(), **_timm_entries(network, about)}
    write_atomically(folder / "config.json", json.dumps(content, indent=1).encode())
    file = folder / f"model.{format}"
    if format == "safetensors":
        write_tensors(file, network.state_dict(), metadata={"format": "pt"})
        return open_model(folder, transform=transform).heads
    graph = _Graph(network).eval()
    # The batch size is neither 0 nor 1, which torch.export would take for a constant.
    example = torch.zeros(3, about.channels, about.image_size, about.image_size)
    if format == "onnx":
        with _exporting("ONNX"):
            write_onnx(graph, example, about, file, ["logits", "heads"] if about.kind == "full" else ["logits"])
        return open_model(file).heads
    with _exporting("torch.export"):
        program = torch.export.export(graph, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
        for node in program.graph.nodes:  # paths of this machine
            node.meta.pop("stack_trace", None)
        description = json.dumps(about.to_dict(), sort_keys=True)
        torch.export.save(program, file, extra_files={"config.json": description})
    run = program.module()
    return lambda x: run(x)[1] if about.kind == "full" else run(x)[:, None]


class _Graph(nn.Module):
    """Returns the logits of a pruned model, or the mean logits and those of every head of a full one."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Any:
        if not isinstance(self.network, TransNet):
            return self.network(images)
        heads = self.network.logits(images)
        return heads.mean(1), heads


@contextmanager
def _exporting(what: str) -> Iterator[None]:
    """Hide the exporter's warnings about its own internals, and turn its errors into an ExportError."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except (FileError, OSError):
        raise
    except Exception as error:  # an exporter can raise anything about a network that it cannot follow
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise ExportError(f"{what} cannot export this network ({reason})") from error
    finally:
        logging.disable(before)


def _timm_entries(network: nn.Module, about: Description) -> dict[str, object]:
    """The entries that ``timm.create_model("local-dir:…", pretrained=True)`` reads, under timm's own keys."""
    if about.kind != "pruned" or about.fold or not about.model.startswith("timm:"):
        return {}
    known: Any = getattr(network, "pretrained_cfg", {})
    fixed = bool(known.get("fixed_input_size"))
    crop = about.image_size / about.stored_size
    if math.floor(about.image_size / crop) != about.stored_size:  # timm computes the stored size like this
        crop = math.nextafter(crop, 0)
    return {
        "architecture": about.model.removeprefix("timm:").partition(".")[0],
        "num_classes": len(about.classes),
        "num_features": getattr(network, "num_features", None),
        "model_args": {"in_chans": about.channels} | ({"img_size": about.image_size} if fixed else {}),
        "pretrained_cfg": {
            "num_classes": len(about.classes), "input_size": [about.channels, about.image_size, about.image_size],
            "mean": about.mean, "std": about.std, "crop_pct": crop, "interpolation": PREPROCESSING["interpolation"],
            "fixed_input_size": fixed, "label_names": about.classes,
            "first_conv": known.get("first_conv"), "classifier": known.get("classifier"),
        },
    }  # fmt: skip
