"""What the page of `transnet serve` shows of an image: what each head sees and says, and how the anytime rule decides.

It takes JPEG, PNG and WebP of up to 40 million pixels, whatever else Pillow reads: the image may be a stranger's.
"""

import base64
import io
from typing import Any

import numpy as np
import torch

from transnet import d4
from transnet.data.decode import Pixels, decode_image
from transnet.early_exit import lead
from transnet.errors import DataError
from transnet.ship.models import Model
from transnet.ship.predict import head_names

MOST_PIXELS = 40 * 10**6
FORMATS = ("JPEG", "PNG", "WEBP")
_TOP = 5
_SHOWN_SIDE = 224


def look(model: Model, encoded: bytes) -> dict[str, Any]:
    """All that the page shows of one image: each head's view and classes, the ensemble, the anytime rule's steps.

    Args:
        model: what predicts.
        encoded: the bytes of a JPEG, PNG or WebP file.

    Raises:
        DataError: where they are none, or have too many pixels.
    """
    pixels = model.shown(_decode(encoded))
    logits = model.heads(model.normalise(pixels)[None])[0].double()
    names = model.about.transforms
    # The graph of a folded head has its transform inside: it is shown what the person sees.
    views = [pixels if model.about.fold else _turned(pixels, name) for name in names]
    sums = logits.cumsum(0)
    running = (sums / torch.arange(1, len(logits) + 1)[:, None]).softmax(-1)
    # Log-odds, as `anytime` compares them; one class has no runner-up, and JSON no infinity.
    leads = [min(value, 1e9) for value in lead(sums).tolist()]
    return {
        "heads": [
            {"name": title, "view": _data_url(view), "classes": _classes(model, p)}
            for title, view, p in zip(head_names(names), views, logits.softmax(-1), strict=True)
        ],
        "ensemble": _classes(model, running[-1]),
        "steps": [{**_classes(model, p)[0], "lead": ahead} for p, ahead in zip(running, leads, strict=True)],
        "one_by_one": model.net is not None,
    }


def _decode(encoded: bytes) -> Pixels:
    from PIL import Image

    if not encoded:
        raise DataError("empty (0 bytes)")
    try:
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:  # reads the header only
            width, height = image.size
    except Image.DecompressionBombError as error:
        most = MOST_PIXELS // 10**6
        raise DataError(f"far too many pixels; at most {most} million are taken: scale it down") from error
    except Exception as error:  # a decoder that is given damaged bytes raises nearly anything
        raise DataError("not a JPEG, PNG or WebP image, or its beginning is damaged") from error
    if width * height > MOST_PIXELS:
        raise DataError(f"{width}×{height} pixels; at most {MOST_PIXELS // 10**6} million are taken: scale it down")
    return decode_image(encoded)


def _turned(pixels: Pixels, name: str) -> Pixels:
    turned = d4.apply(name, torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1))
    return turned.permute(1, 2, 0).contiguous().numpy()


def _data_url(pixels: Pixels) -> str:
    from PIL import Image

    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    if image.width < _SHOWN_SIDE:  # whole multiples of a pixel, to see what the network sees
        factor = max(1, _SHOWN_SIDE // image.width)
        image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _classes(model: Model, p: torch.Tensor) -> list[dict[str, Any]]:
    values, labels = p.topk(min(_TOP, len(p)))
    found = zip(labels.tolist(), values.tolist(), strict=True)
    return [{"class": model.about.classes[i], "probability": value} for i, value in found]
