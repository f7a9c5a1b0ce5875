"""Open a trained model of any kind: a run, an exported folder, an ONNX file, or a model on the Hugging Face Hub.

>>> model = open_model("runs/t2")
>>> probabilities = model.heads(model.prepare(Path("cat.jpg").read_bytes())[None]).mean(1).softmax(-1)

Nothing in these files is executed: they are JSON, safetensors and ONNX, never pickles. Each is checked before it is
used, so that a file from a stranger ends in predictions or in an error.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from transnet.console import first_line
from transnet.data.augment import View
from transnet.data.pixels import Geometry, Pixels, decode_image, with_channels
from transnet.errors import FileError
from transnet.model import TransNet
from transnet.runs.description import Description
from transnet.runs.files import read_json
from transnet.runs.folder import Run, load
from transnet.runs.weights import load_weights
from transnet.train.device import find_device
from transnet.train.distributed import World

Heads = Callable[[Tensor], Tensor]

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(@[\w./-]{1,100})?")
_PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pt2")
_KINDS = "a model is a run's folder, an exported folder, an .onnx file or hf:owner/name"


@dataclass(frozen=True)
class Model:
    """A trained model, ready to predict, whatever kind of file it came from.

    Attributes:
        source: what was opened.
        about: classes, heads and preprocessing.
        heads: normalised images (B, C, S, S) → logits (B, m, K) of every head, without gradients.
        network: a TransNet or the pruned classifier; None for an ONNX file.
    """

    source: str
    about: Description
    heads: Heads
    network: nn.Module | None = None

    @classmethod
    def of(cls, network: nn.Module, about: Description, source: str) -> "Model":
        """The model of a network in memory."""
        network.eval()
        device = next(network.parameters()).device

        @torch.inference_mode()
        def heads(x: Tensor) -> Tensor:
            x = x.to(device)
            logits = network.logits(x) if isinstance(network, TransNet) else cast(Tensor, network(x))[:, None]
            return logits.float().cpu()

        return cls(source, about, heads, network)

    @property
    def net(self) -> TransNet | None:
        """The network with all its heads, for `transnet.anytime`; None for a pruned model or an ONNX file."""
        return self.network if isinstance(self.network, TransNet) else None

    @property
    def _geometry(self) -> Geometry:
        return Geometry.square(self.about.image_size, stored=self.about.stored_size)

    def prepare(self, encoded: bytes) -> Tensor:
        """Decode an image file and resize, crop and normalise it as in training: (C, S, S).

        Raises:
            DataError: if the bytes cannot be read as an image.
        """
        return self.normalise(self.crop(decode_image(encoded)))

    def crop(self, pixels: Pixels) -> Pixels:
        """The part of a decoded image that the network sees, (S, S, C) in 0…255."""
        geometry = self._geometry
        return geometry.centre(geometry.fit(with_channels(pixels, self.about.channels)))

    def normalise(self, pixels: Pixels) -> Tensor:
        """(S, S, C) in 0…255 → (C, S, S), as in training."""
        view = View.create(self._geometry, mean=self.about.mean, std=self.about.std)
        return view.normalise(torch.from_numpy(np.ascontiguousarray(pixels))[None])[0]


def open_model(source: str | Path, *, device: str = "cpu") -> Model:
    """Open a model of any kind for prediction.

    Args:
        source: a run's folder, a folder that `transnet prune` or `save_pretrained` wrote, an ``.onnx`` file, or
            ``hf:owner/name`` (``hf:owner/name@revision``).
        device: where to compute: ``cpu``, ``cuda``, ``cuda:1`` or ``auto``. ONNX files always run on the CPU.

    Raises:
        FileError: if there is no model, or it is damaged, or its parts do not belong together.
    """
    where, text = find_device(device, World()), str(source)
    if text.startswith("hf:"):
        return _open_folder(download(text), text, where)
    path = Path(os.path.expanduser(text))
    if path.is_dir():
        return _open_folder(path, text, where)
    if path.suffix == ".onnx" and path.exists():
        return _open_onnx(path)
    raise FileError(f"{path} {_problem(path)}")


def _problem(path: Path) -> str:
    """Why a path is not a model, and what to give instead."""
    if path.suffix in _PICKLES:
        return (
            f"is not opened, because loading a {path.suffix} file can run code in it; give the run, or export it with "
            "`format` safetensors or onnx"
        )
    if not path.exists():
        return f"does not exist; {_KINDS}"
    if path.suffix == ".safetensors":
        return f"has weights without classes and preprocessing; give their folder, {path.parent}"
    if path.suffix in (".json", ".jsonl") and (path.parent / "config.json").is_file():
        return f"is a file; give its folder, {path.parent}"
    return f"is not a model; {_KINDS}"


def _open_folder(path: Path, source: str, device: torch.device) -> Model:
    config, weights = path / "config.json", path / "model.safetensors"
    if not weights.exists() and (path / "model.onnx").is_file():
        return _open_onnx(path / "model.onnx")
    if not weights.exists() and (path / "model.pt2").is_file():
        raise FileError(f"{path / 'model.pt2'} {_problem(path / 'model.pt2')}")
    content = read_json(config, _KINDS)
    if "train" in content:
        return Model.of(load(path).to(device), Description.of_run(Run(path).settings(), str(config)), source)
    about = Description.of_export(content, str(config))

    def fold(model: nn.Module) -> nn.Module:
        from transnet.folding.fold import fold

        return fold(model.eval(), about.transforms[0], about.image_size)

    network = load_weights(weights, about.build, about.model, finish=fold if about.fold else None)
    return Model.of(network.to(device), about, source)


def _open_onnx(path: Path) -> Model:
    from transnet.ship.onnx import open_onnx

    about, heads = open_onnx(path)
    return Model(str(path), about, heads)


def download(source: str, **options: Any) -> Path:
    """Download the config and the weights of a model on the Hub into the Hub's own cache, and return their folder.

    Args:
        source: ``hf:owner/name`` or ``hf:owner/name@revision``.
        options: those of `huggingface_hub.snapshot_download`.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    name = source.removeprefix("hf:")
    if not _REPOSITORY.fullmatch(name) or ".." in name:
        raise FileError(f"{source} is not a repository; hf:owner/name or hf:owner/name@revision is needed")
    repository, _, revision = name.partition("@")
    if revision:
        options["revision"] = revision
    try:
        return Path(snapshot_download(repository, allow_patterns=["config.json", "model.safetensors"], **options))
    except RepositoryNotFoundError:
        raise FileError(f"{source}: the Hub has no such model, or it is private and you are not logged in") from None
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise FileError(f"{source} could not be downloaded ({first_line(error)})") from None
