"""Open a trained model of any kind: a run, an exported folder, an ONNX file, or a model on the Hugging Face Hub.

>>> model = open_model("runs/t2")
>>> probabilities = model.heads(model.prepare(Path("cat.jpg").read_bytes())[None]).mean(1).softmax(-1)

Nothing in these files is executed: they are JSON, safetensors and ONNX, never pickles. Each is checked before it is
used, so that a file from a stranger ends in predictions or in an error.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from transnet.console import first_line
from transnet.data.augment import View
from transnet.data.pixels import Geometry, Pixels, decode_image, with_channels
from transnet.errors import FileError
from transnet.folding.fold import fold
from transnet.model import TransNet
from transnet.runs.description import Description
from transnet.runs.files import read_json
from transnet.runs.folder import Run, load
from transnet.runs.weights import load_weights
from transnet.ship.onnx import open_onnx
from transnet.train.device import find_device
from transnet.train.distributed import World

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(@[\w./-]{1,100})?")
_PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pt2")
_KINDS = "a model is a run's folder, an exported folder, an .onnx file or hf:owner/name"


@dataclass(frozen=True)
class Model:
    """A trained model, ready to predict, whatever kind of file it came from."""

    source: str  # what was opened
    about: Description  # classes, heads and preprocessing
    heads: Callable[[Tensor], Tensor]  # normalised images (B, C, S, S) → every head's logits (B, m, K), no gradients
    network: nn.Module | None = None  # a TransNet or the pruned classifier; None for an ONNX file

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
    def _view(self) -> View:
        geometry = Geometry.square(self.about.image_size, stored=self.about.stored_size)
        return View.create(geometry, mean=self.about.mean, std=self.about.std)

    def prepare(self, encoded: bytes) -> Tensor:
        """Decode an image file and resize, crop and normalise it as in training: (C, S, S)."""
        return self.normalise(self.crop(decode_image(encoded)))

    def crop(self, pixels: Pixels) -> Pixels:
        """The part of a decoded image that the network sees, (S, S, C) in 0…255."""
        geometry = self._view.geometry
        return geometry.centre(geometry.fit(with_channels(pixels, self.about.channels)))

    def normalise(self, pixels: Pixels) -> Tensor:
        """(S, S, C) in 0…255 → (C, S, S), as in training."""
        return self._view.normalise(torch.from_numpy(np.ascontiguousarray(pixels))[None])[0]

    @torch.inference_mode()
    def seen_by(self, net: TransNet, transform: str, pixels: Pixels) -> Pixels:
        """What the head of a transform sees, (S, S, C) in 0…255; the transform may be one of the user's own."""
        x = self.normalise(pixels)[None].to(next(net.parameters()).device)
        seen = net._transform(transform, x)[0].cpu().permute(1, 2, 0)
        stored = (seen + self._view.shift) / self._view.scale
        return stored.round().clamp(0, 255).to(torch.uint8).numpy()


def open_model(source: str | Path, *, device: str = "cpu", transform: str | Sequence[str] = ()) -> Model:
    """Open a model for prediction. ONNX files always run on the CPU.

    ``source`` is a run's folder, a folder that `transnet prune` or `save_pretrained` wrote, an ``.onnx`` file, or
    ``hf:owner/name`` (``hf:owner/name@revision``). ``transform`` is as for `load`.
    """
    where, text = find_device(device, World()), str(source)
    path = download(text) if text.startswith("hf:") else Path(os.path.expanduser(text))
    if path.is_dir():
        graphs = [path / name for name in ("model.onnx", "model.pt2") if (path / name).is_file()]
        if not graphs or (path / "model.safetensors").exists():
            return _open_folder(path, text, where, transform)
        path = graphs[0]
    if path.suffix == ".onnx" and path.exists():
        return Model(str(path), *open_onnx(path))
    if path.suffix in _PICKLES:
        problem = (
            f"is not opened, because loading a {path.suffix} file can run code in it; give the run, or export it with "
            "`format` safetensors or onnx"
        )
    elif path.suffix == ".safetensors" and path.exists():
        problem = f"has weights without classes and preprocessing; give their folder, {path.parent}"
    elif path.exists() and (path.parent / "config.json").is_file():
        problem = f"is a file; give its folder, {path.parent}"
    else:
        problem = f"{'is not a model' if path.exists() else 'does not exist'}; {_KINDS}"
    raise FileError(f"{path} {problem}")


def _open_folder(path: Path, source: str, device: torch.device, transform: str | Sequence[str]) -> Model:
    config = path / "config.json"
    content = read_json(config, _KINDS)
    network: nn.Module
    if "train" in content:
        network, about = load(path, transform=transform), Description.of_run(Run(path).settings(), str(config))
    else:
        about = Description.of_export(content, str(config))

        def folded(model: nn.Module) -> nn.Module:
            return fold(model.eval(), about.transforms[0], about.image_size)

        weights = path / "model.safetensors"
        transforms = about.with_functions(transform, source) if about.kind == "full" else ()
        build = partial(about.build, transforms=transforms)
        network = load_weights(weights, build, about.model, finish=folded if about.fold else None)
    return Model.of(network.to(device), about, source)


def download(source: str, **options: Any) -> Path:
    """Download a model on the Hub, ``hf:owner/name`` or ``hf:owner/name@revision``, and return its folder in the cache.

    ``options`` are those of `huggingface_hub.snapshot_download`.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

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
    except OSError as error:  # also every error of the Hub
        raise FileError(f"{source} could not be downloaded ({first_line(error)})") from None
