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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from transnet.console import first_line
from transnet.errors import ConfigError, DataError, FileError, OperationError
from transnet.model import TransNet
from transnet.runs.description import PREPROCESSING, Description
from transnet.runs.files import write_atomically, write_tensors
from transnet.runs.folder import load
from transnet.ship.models import Heads, Model, open_model
from transnet.ship.prune import network_of_run
from transnet.train.evaluate_runs import some_images

Format = Literal["safetensors", "onnx", "pt2"]
TOLERANCE = 1e-4  # of the largest logit: differences from the order of float32 sums are smaller
_IMAGES = 64


class ExportError(OperationError):
    """A model could not be written such that it gives the same outputs. No file is left behind."""


@dataclass(frozen=True)
class Export:
    """What was written, and how it compares with the run.

    Attributes:
        file: the model.
        about: its description.
        difference: the largest difference between a logit and the run's own.
        same: fraction of the images with the same class.
        images: number of images compared.
        real: whether these are images of the run's test split; noise is used if its data is not there.
    """

    file: Path
    about: Description
    difference: float
    same: float
    images: int
    real: bool


def export_run(path: str | Path, out: str | Path, *, head: str = "r0", format: Format = "safetensors") -> Export:
    """Write a run's model to a new folder, load it again, and compare it with the run on test images.

    Args:
        path: a finished run.
        out: the folder to create.
        head: a head of the run, ``best`` (with the lowest validation loss) or ``all``.
        format: ``safetensors``, ``onnx`` or ``pt2``.

    Raises:
        ConfigError: if the folder exists, or there is no such head.
        ExportError: if the network cannot be exported, or the written model gives other outputs.
    """
    target = Path(out).absolute()
    if target.resolve() == Path.cwd():
        raise ConfigError(f"{target} is the current folder; give a new one", field="out")
    if os.path.exists(target) and (not target.is_dir() or any(target.iterdir())):  # unlike Path.exists, never raises
        raise ConfigError(f"{target} exists; give another folder", field="out")
    network, about = network_of_run(path, head)
    images, real = _images(path, network, about)
    net = load(path)
    with torch.no_grad():
        wanted = net.logits(images)
    if about.kind == "pruned":
        wanted = wanted[:, [net.transforms.index(about.transforms[0])]]
    partial = target.with_name(f"{target.name}.{secrets.token_hex(4)}.partial")
    try:
        partial.mkdir(parents=True)
        difference, same = _compare(write_model(network, about, partial, format), images, wanted)
        if target.exists():
            target.rmdir()
        os.replace(partial, target)
    except OSError as error:
        reason = error.strerror or error  # without the name of the partial folder, which the user does not know
        raise ConfigError(f"{target} cannot be written ({reason}); give another folder", field="out") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Export(Path(out) / f"model.{format}", about, difference, same, len(images), real)


def _images(path: str | Path, network: nn.Module, about: Description) -> tuple[Tensor, bool]:
    model = Model.of(network, about, str(path))
    try:
        pixels, real = some_images(str(path), _IMAGES), True
    except (DataError, OSError):
        shape = (_IMAGES, about.stored_size, about.stored_size, about.channels)
        pixels, real = list(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)), False
    return torch.stack([model.normalise(model.crop(image)) for image in pixels]), real


def _compare(written: Heads, images: Tensor, wanted: Tensor) -> tuple[float, float]:
    """Return the largest difference of a logit and the fraction of equal classes; uses two batch sizes."""
    with torch.no_grad():
        given = torch.cat([written(images[:1]), written(images[1:])])
    difference = float((given - wanted).abs().max())
    bound = TOLERANCE * max(1.0, float(wanted.abs().max()))
    if not difference <= bound:  # also true for NaN
        raise ExportError(f"the written model gives other outputs: a logit differs by {difference:.2g} (≤ {bound:.2g})")
    return difference, float((given.mean(1).argmax(-1) == wanted.mean(1).argmax(-1)).float().mean())


# ------------------------------------------------------------------------------------------------------- the formats


def write_model(network: nn.Module, about: Description, folder: Path, format: Format = "safetensors") -> Heads:
    """Write a network and its ``config.json`` to an existing folder.

    Returns:
        The function from normalised images to logits (B, m, K), computed from the written file.
    """
    content = {**about.to_dict(), **_timm_entries(network, about)}
    write_atomically(folder / "config.json", json.dumps(content, indent=1).encode())
    return _WRITERS[format](network, about, folder)


def _write_safetensors(network: nn.Module, about: Description, folder: Path) -> Heads:
    write_tensors(folder / "model.safetensors", network.state_dict(), metadata={"format": "pt"})
    return open_model(folder).heads


def _write_onnx(network: nn.Module, about: Description, folder: Path) -> Heads:
    from transnet.ship.onnx import write_onnx

    names = ["logits", "heads"] if about.kind == "full" else ["logits"]
    with _exporting("ONNX"):
        write_onnx(_Graph(network).eval(), _example(about), about, folder / "model.onnx", names)
    return open_model(folder / "model.onnx").heads


def _write_pt2(network: nn.Module, about: Description, folder: Path) -> Heads:
    description = json.dumps(about.to_dict(), sort_keys=True)
    with _exporting("torch.export"):
        shapes = ({0: torch.export.Dim("batch")},)
        program = torch.export.export(_Graph(network).eval(), (_example(about),), dynamic_shapes=shapes)
        for node in program.graph.nodes:  # paths of this machine
            node.meta.pop("stack_trace", None)
        torch.export.save(program, folder / "model.pt2", extra_files={"config.json": description})
    run = program.module()
    return lambda x: run(x)[1] if about.kind == "full" else run(x)[:, None]


_WRITERS: dict[Format, Callable[[nn.Module, Description, Path], Heads]] = {
    "safetensors": _write_safetensors, "onnx": _write_onnx, "pt2": _write_pt2,
}  # fmt: skip


class _Graph(nn.Module):
    """The outputs of a graph: the logits of a pruned model; the mean logits and every head's of a full one."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Any:
        if not isinstance(self.network, TransNet):
            return self.network(images)
        heads = self.network.logits(images)
        return heads.mean(1), heads


def _example(about: Description) -> Tensor:
    # The batch size is neither 0 nor 1, which torch.export would take for a constant.
    shape = (3, about.channels, about.image_size, about.image_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@contextmanager
def _exporting(what: str) -> Iterator[None]:
    """Hide the exporter's warnings about its own internals, and turn its errors into an ExportError."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "torch.export")]
    levels = [logger.level for logger in loggers]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
    except (FileError, OSError):
        raise
    except Exception as error:  # an exporter can raise anything about a network that it cannot follow
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise ExportError(f"{what} cannot export this network ({reason})") from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _timm_entries(network: nn.Module, about: Description) -> dict[str, object]:
    """The entries that ``timm.create_model("local-dir:…", pretrained=True)`` reads, under timm's own keys."""
    if about.kind != "pruned" or about.fold or not about.model.startswith("timm:"):
        return {}
    known: Any = getattr(network, "pretrained_cfg", {})
    size = [about.channels, about.image_size, about.image_size]
    arguments = {"in_chans": about.channels}
    if known.get("fixed_input_size"):
        arguments["img_size"] = about.image_size
    return {
        "architecture": about.model.removeprefix("timm:").partition(".")[0],
        "num_classes": len(about.classes),
        "num_features": getattr(network, "num_features", None),
        "model_args": arguments,
        "pretrained_cfg": {
            "num_classes": len(about.classes), "input_size": size, "mean": about.mean, "std": about.std,
            "crop_pct": _crop_pct(about), "interpolation": PREPROCESSING["interpolation"],
            "fixed_input_size": bool(known.get("fixed_input_size")), "label_names": about.classes,
            "first_conv": known.get("first_conv"), "classifier": known.get("classifier"),
        },
    }  # fmt: skip


def _crop_pct(about: Description) -> float:
    """timm's ratio of the crop to the resized image, such that floor(image_size / crop_pct) is the stored size."""
    ratio = about.image_size / about.stored_size
    exact = math.floor(about.image_size / ratio) == about.stored_size
    return ratio if exact else math.nextafter(ratio, 0)
