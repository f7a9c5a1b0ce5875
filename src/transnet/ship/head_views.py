"""What the page of `transnet serve` shows about an image: each head's view and classes, and the steps of early exit.

The image may come from a stranger. So only JPEG, PNG and WebP of up to 40 million pixels are read, although Pillow
reads more.
"""

import base64
import io
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from transnet import d4
from transnet.data.pixels import Pixels, decode_image
from transnet.early_exit import lead
from transnet.errors import DataError
from transnet.ship.models import Model
from transnet.ship.predict import head_names

MOST_PIXELS = 40 * 10**6
FORMATS = ("JPEG", "PNG", "WEBP")
_TOP = 5
_SHOWN_SIDE = 224


@dataclass(frozen=True)
class ClassProbability:
    """One of the most probable classes."""

    label: str
    probability: float


@dataclass(frozen=True)
class HeadView:
    """One head: its name, the image as it sees it (a data URL), and its most probable classes."""

    name: str
    view: str
    classes: list[ClassProbability]


@dataclass(frozen=True)
class Step:
    """The class after one more head, and its `lead` over the runner-up."""

    label: str
    lead: float


@dataclass(frozen=True)
class Views:
    """Everything that the page shows about one image.

    Attributes:
        heads: each head alone.
        ensemble: the most probable classes of all heads.
        steps: the mean of the first 1, 2, … m heads.
        early_exit: whether the model can run its heads one by one.
    """

    heads: list[HeadView]
    ensemble: list[ClassProbability]
    steps: list[Step]
    early_exit: bool


def head_views(model: Model, encoded: bytes) -> Views:
    """Predict one image and show how the model arrived at the class.

    Args:
        model: the model.
        encoded: the bytes of a JPEG, PNG or WebP file.

    Raises:
        DataError: if they are not such a file, or it has too many pixels.
    """
    pixels = model.crop(_decode(encoded))
    logits = model.heads(model.normalise(pixels)[None])[0].double()
    names, classes = model.about.transforms, model.about.classes
    # The transform of a folded head is in its weights, so it sees the image as it is.
    views = [pixels if model.about.fold else _transformed(pixels, name) for name in names]
    sums = logits.cumsum(0)
    leads = lead(sums).clamp(max=1e9).tolist()  # JSON cannot hold the infinite lead of a single class
    return Views(
        heads=[
            HeadView(title, _data_url(view), _classes(model, p))
            for title, view, p in zip(head_names(names), views, logits.softmax(-1), strict=True)
        ],
        ensemble=_classes(model, logits.mean(0).softmax(-1)),
        steps=[Step(classes[i], ahead) for i, ahead in zip(sums.argmax(-1).tolist(), leads, strict=True)],
        early_exit=model.net is not None,
    )


def _decode(encoded: bytes) -> Pixels:
    from PIL import Image

    limit = f"at most {MOST_PIXELS // 10**6} million are accepted: scale it down"
    if not encoded:
        raise DataError("empty (0 bytes)")
    try:
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:  # reads the header only
            width, height = image.size
    except Image.DecompressionBombError as error:
        raise DataError(f"far too many pixels; {limit}") from error
    except Exception as error:  # a decoder can raise anything about damaged bytes
        raise DataError("not a JPEG, PNG or WebP image, or its beginning is damaged") from error
    if width * height > MOST_PIXELS:
        raise DataError(f"{width}×{height} pixels; {limit}")
    return decode_image(encoded)


def _transformed(pixels: Pixels, name: str) -> Pixels:
    transformed = d4.apply(name, torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1))
    return transformed.permute(1, 2, 0).contiguous().numpy()


def _data_url(pixels: Pixels) -> str:
    from PIL import Image

    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    if image.width < _SHOWN_SIDE:  # each pixel becomes a square of pixels, to show what the network sees
        factor = max(1, _SHOWN_SIDE // image.width)
        image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _classes(model: Model, p: Tensor) -> list[ClassProbability]:
    values, labels = p.topk(min(_TOP, len(p)))
    return [
        ClassProbability(model.about.classes[i], value)
        for i, value in zip(labels.tolist(), values.tolist(), strict=True)
    ]
