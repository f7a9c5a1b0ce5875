"""What the page of `transnet serve` shows about an image: each head's view and classes, and the steps of early exit.

The image may come from a stranger. So only JPEG, PNG and WebP of up to 40 million pixels are read, although Pillow
reads more.
"""

import base64
import io
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from transnet import d4
from transnet.data.pixels import Pixels, decode_image
from transnet.early_exit import lead
from transnet.errors import DataError
from transnet.ship.models import Model
from transnet.ship.predict import head_names

_MOST_PIXELS = 40 * 10**6
_FORMATS = ("JPEG", "PNG", "WEBP")
_TOP = 5


def head_views(model: Model, encoded: bytes) -> dict[str, object]:
    """Predict one image and return what the page shows about it, as JSON content.

    ``heads`` has each head alone, ``ensemble`` the most probable classes of all heads, ``steps`` the class of the first
    1, 2, … m heads and its lead over the runner-up. ``early_exit`` states whether heads can run one by one.

    Raises:
        DataError: if the bytes are not a JPEG, PNG or WebP file, or it has too many pixels.
    """
    pixels = model.crop(_decode(encoded))
    logits = model.heads(model.normalise(pixels)[None])[0].double()
    about, classes = model.about, model.about.classes
    # The transform of a folded head is in its weights, so it sees the image as it is.
    views = [_picture(pixels, "r0" if about.fold else name) for name in about.transforms]
    sums = logits.cumsum(0)
    leads = lead(sums).clamp(max=1e9).tolist()  # JSON cannot hold the infinite lead of a single class
    return {
        "heads": [
            {"name": title, "view": view, "classes": _most_probable(classes, row)}
            for title, view, row in zip(head_names(about.transforms), views, logits, strict=True)
        ],
        "ensemble": _most_probable(classes, logits.mean(0)),
        "steps": [{"label": classes[i], "lead": ahead} for i, ahead in zip(sums.argmax(-1).tolist(), leads)],
        "early_exit": model.net is not None,
    }


def _decode(encoded: bytes) -> Pixels:
    from PIL import Image

    limit = f"at most {_MOST_PIXELS // 10**6} million are accepted: scale it down"
    try:
        with Image.open(io.BytesIO(encoded), formats=_FORMATS) as image:  # reads the header only
            width, height = image.size
    except Image.DecompressionBombError as error:
        raise DataError(f"far too many pixels; {limit}") from error
    except Exception as error:  # a decoder can raise anything about damaged bytes
        raise DataError("not a JPEG, PNG or WebP image, or its beginning is damaged") from error
    if width * height > _MOST_PIXELS:
        raise DataError(f"{width}×{height} pixels; {limit}")
    return decode_image(encoded)


def _picture(pixels: Pixels, transform: str) -> str:
    """The transformed image as a data URL. The page enlarges it such that each pixel becomes a square."""
    from PIL import Image

    seen = d4.apply(transform, torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)).permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(seen[:, :, 0] if seen.shape[2] == 1 else seen).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _most_probable(classes: Sequence[str], logits: Tensor) -> list[dict[str, object]]:
    top = logits.softmax(-1).topk(min(_TOP, len(logits)))
    return [{"label": classes[i], "probability": p} for p, i in zip(top.values.tolist(), top.indices.tolist())]
