"""Write a run as a model that others can use, and say so only after the written file gave the same outputs.

    safetensors    model.safetensors under the network's own names, and config.json
    onnx           model.onnx for ONNX Runtime: any batch size, the full model's transforms inside the graph
    pt2            model.pt2 for torch.export. Written only: loading such a file can run code in it

Every format carries its classes and preprocessing.
"""

import json
import logging
import math
import os
import secrets
import shutil
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from transnet.errors import ConfigError, DataError
from transnet.model import TransNet
from transnet.runs.description import PREPROCESSING, Description
from transnet.runs.files import write_atomically, write_tensors
from transnet.runs.folder import load
from transnet.ship.models import model_of, open_model
from transnet.ship.prune import network_of_run

Format = Literal["safetensors", "onnx", "pt2"]
# Of the largest logit: what the order of sums in float32 explains, with room.
TOLERANCE = 1e-4
_IMAGES = 64


class ExportError(RuntimeError):
    """A model that could not be written so that it gives the same outputs; nothing is left behind."""


@dataclass(frozen=True)
class Export:
    """What was written, and how it compares with the run.

    Attributes:
        file: the model.
        about: its description.
        difference: largest difference of a logit to the run's own.
        same: share of the images of which the class is the same.
        images: number of images compared.
        real: whether they were images of the run's test split; noise, where its data is not there.
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
        out: the folder to make.
        head: one of the run's, ``best`` (of the lowest validation loss) or ``all``.
        format: ``safetensors``, ``onnx`` or ``pt2``.

    Raises:
        ConfigError: where the folder exists or the head is not there.
        ExportError: where the network cannot be exported, or the written one gives other outputs.
    """
    target = Path(out).absolute()
    if target.resolve() == Path.cwd():
        raise ConfigError(f"{target} is the folder you are in; give one to be made", field="out")
    # Not Path.exists, which raises under a folder that may not be entered: what cannot be made is said below.
    if os.path.exists(target) and (not target.is_dir() or any(target.iterdir())):
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
        written = _WRITERS[format](network, about, partial)
        difference, same = _compare(written, images, wanted)
        if target.exists():
            target.rmdir()
        os.replace(partial, target)
    except OSError as error:
        reason = error.strerror or error  # without the partial folder's name, which nobody gave
        raise ConfigError(f"{target} cannot be written ({reason}); give another folder", field="out") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Export(Path(out) / f"model.{format}", about, difference, same, len(images), real)


Heads = Callable[[Tensor], Tensor]


def _compare(written: Heads, images: Tensor, wanted: Tensor) -> tuple[float, float]:
    """Largest difference of a logit, and the share of equal classes; in two batch sizes, since both must work."""
    with torch.no_grad():
        given = torch.cat([written(images[:1]), written(images[1:])])
    difference = float((given - wanted).abs().max())
    bound = TOLERANCE * max(1.0, float(wanted.abs().max()))
    if not difference <= bound:  # NaN is not
        raise ExportError(f"the written model gives other outputs: a logit differs by {difference:.2g} (≤ {bound:.2g})")
    return difference, float((given.mean(1).argmax(-1) == wanted.mean(1).argmax(-1)).float().mean())


def _images(path: str | Path, network: nn.Module, about: Description) -> tuple[Tensor, bool]:
    from transnet.train.evaluate_runs import some_images

    model = model_of(network, about, str(path))
    try:
        pixels, real = some_images(str(path), _IMAGES), True
    except (DataError, OSError):
        sides = (_IMAGES, about.stored_size, about.stored_size, about.channels)
        pixels, real = list(np.random.default_rng(0).integers(0, 256, sides, dtype=np.uint8)), False
    return torch.stack([model.normalise(model.shown(image)) for image in pixels]), real


# ------------------------------------------------------------------------------------------------------- the formats


def write_safetensors(network: nn.Module, about: Description, folder: Path) -> Heads:
    """``model.safetensors`` and ``config.json``; a pruned timm model's also says what plain timm needs to load it."""
    write_tensors(folder / "model.safetensors", network.state_dict(), metadata={"format": "pt"})
    _write_config(network, about, folder)
    return open_model(folder).heads


def _write_onnx(network: nn.Module, about: Description, folder: Path) -> Heads:
    from transnet.ship.onnx import write_graph

    module, example = _graph_of(network), _example(about)
    names = ["logits", "heads"] if isinstance(network, TransNet) else ["logits"]
    with _quiet(), _as_export_error("ONNX"):
        write_graph(module, example, about, folder / "model.onnx", names)
    _write_config(network, about, folder)
    return open_model(folder / "model.onnx").heads


def _write_pt2(network: nn.Module, about: Description, folder: Path) -> Heads:
    module, example = _graph_of(network), _example(about)
    with _quiet(), _as_export_error("torch.export"):
        program = torch.export.export(module, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
        for node in program.graph.nodes:  # where the code lay on this machine is nobody's business
            node.meta.pop("stack_trace", None)
        torch.export.save(
            program, folder / "model.pt2", extra_files={"config.json": json.dumps(about.to_dict(), sort_keys=True)}
        )
    _write_config(network, about, folder)
    run = program.module()
    return lambda x: run(x)[1] if isinstance(network, TransNet) else run(x)[:, None]


_WRITERS: dict[str, Callable[[nn.Module, Description, Path], Heads]] = {
    "safetensors": write_safetensors, "onnx": _write_onnx, "pt2": _write_pt2,
}  # fmt: skip


class _Full(nn.Module):
    """A TransNet as a graph to ship: the mean of the logits, which most users want, and every head's."""

    def __init__(self, net: TransNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        heads = self.net.logits(images)
        return heads.mean(1), heads


class _Pruned(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(images)
        return logits


def _graph_of(network: nn.Module) -> nn.Module:
    return (_Full(network) if isinstance(network, TransNet) else _Pruned(network)).eval()


def _example(about: Description) -> Tensor:
    # torch.export takes a side of 0 or 1 for a constant, and equal ones for the same.
    return torch.randn(
        3, about.channels, about.image_size, about.image_size, generator=torch.Generator().manual_seed(0)
    )


@contextmanager
def _as_export_error(what: str) -> Any:
    try:
        yield
    except (ConfigError, OSError):
        raise
    except Exception as error:  # an exporter raises nearly anything about a network it cannot follow
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ExportError(f"{what} cannot export this network ({type(error).__name__}: {reason})") from error


@contextmanager
def _quiet() -> Any:
    """Exporters warn of their own internals."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "torch.export")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _write_config(network: nn.Module, about: Description, folder: Path) -> None:
    content = {**about.to_dict(), **_timm_entries(network, about)}
    write_atomically(folder / "config.json", json.dumps(content, indent=1).encode())


def _timm_entries(network: nn.Module, about: Description) -> dict[str, Any]:
    """What ``timm.create_model("local-dir:…", pretrained=True)`` reads; its key names are timm's."""
    if about.kind != "pruned" or about.fold or not about.model.startswith("timm:"):
        return {}
    known: dict[str, Any] = getattr(network, "pretrained_cfg", {})
    size = [about.channels, about.image_size, about.image_size]
    arguments: dict[str, Any] = {"in_chans": about.channels}
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
