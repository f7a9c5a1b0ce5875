"""Small image files for the tests of ``transnet.data``."""

import io
from pathlib import Path

import numpy as np
from PIL import Image


def noise(seed: int, height: int = 12, width: int = 12, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def encoded(pixels: np.ndarray, format: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(file, format, **options)
    return file.getvalue()


def class_folder(
    root: Path, classes: tuple[str, ...] = ("cat", "dog"), n: int = 10, size: int = 12, seed: int = 0
) -> Path:
    for c, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for i in range(n):
            (root / name / f"{i}.png").write_bytes(encoded(noise(seed + 1000 * c + i, size, size)))
    return root
