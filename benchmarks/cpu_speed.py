"""How fast a CPU trains, beside other tools: image passes per second over a whole epoch, data loading included.

    git worktree add before f7801dd
    python benchmarks/cpu_speed.py --before before --timm timm/train.py --out results/cpu_speed.json
    python benchmarks/cpu_speed.py --timm timm/train.py --grocery FOLDER --out results/cpu_speed.json   # whole commands

Every tool trains one head from random weights on the same images, which the script makes, with the same batch size, in
a process of its own. A figure is the last epoch of a run; the tools take turns. Peers use the channels-last format, the
faster of fp32 and bf16 (tried once per network), and the allocator settings of the project as environment variables.

The whole command is `transnet train` beside timm's train.py, start-up included: two epochs on the photographs of a
folder of parquet shards, written as files, with as many images scored. The command can be repeated: it adds what OUT
does not have yet. Let nothing else run on the machine.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from measuring import write

ROOT = Path(__file__).parents[1]
NETWORKS = {  # the network, its side and batch
    "resnet8-small-32": ("resnet8-small", 32, 256),
    "resnet18-32": ("resnet18-cifar", 32, 64),
    "efficientnet-lite0-128": ("timm:tf_efficientnet_lite0", 128, 32),
    "convnext-atto-128": ("timm:convnext_atto", 128, 32),
}
IMAGES = {"resnet8-small-32": 15_360, "resnet18-32": 768, "efficientnet-lite0-128": 640, "convnext-atto-128": 800}
TOOLS = ("ours_fp32", "ours_bf16", "before", "plain", "lightning", "timm")
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_MMAP_MAX_": "0"}
EPOCHS = 2


def make_images(network: str, n: int, folder: Path) -> Path:
    """Write random images: an .npz file for small ones, JPEG files of 160×144 for photographs."""
    chance = np.random.default_rng(0)
    if NETWORKS[network][1] == 32:
        x = chance.integers(0, 256, (n + 64, 32, 32, 3), dtype=np.uint8)
        y = np.arange(n + 64) % 10
        path = folder / "images.npz"
        np.savez(path, x_train=x[:n], y_train=y[:n], x_test=x[n:], y_test=y[n:])
        return path
    for part, count in (("train", n), ("test", 64)):
        for i in range(count):
            place = folder / part / f"class{i % 10}"
            place.mkdir(parents=True, exist_ok=True)
            coarse = chance.integers(0, 256, (9, 10, 3), dtype=np.uint8)
            Image.fromarray(coarse).resize((160, 144), Image.Resampling.BICUBIC).save(place / f"{i}.jpg", quality=90)
    return folder


def call(words: list[object], environment: dict[str, str], *, cwd: Path = ROOT) -> str:
    """Run a command and return everything that it printed."""
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, **environment},
    )
    if done.returncode:
        raise SystemExit(f"{words} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout + done.stderr


def train_command(data: Path, network: str, out: Path, *, transforms: str = "r0", epochs: int = EPOCHS) -> list[object]:
    model, side, batch = NETWORKS[network]
    words = [sys.executable, "-m", "transnet", "train", data, "--transforms", transforms, "--model", model]
    words += ["--image-size", side, "--batch-size", batch, "--epochs", epochs, "--evaluate-every", 0]
    return [*words, "--lr", 0.01, "--device", "cpu", "--out", out]


def ours(tree: Path, network: str, data: Path, *options: object) -> float:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        call([*train_command(data, network, out), *options], {"PYTHONPATH": str(tree / "src")}, cwd=tree)
        return json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])["images_per_second"]


def peer(name: str, network: str, data: Path, precision: str) -> float:
    words = [sys.executable, ROOT / "benchmarks" / "cpu_peers.py", name, network, data, "--precision", precision]
    printed = call([*words, "--epochs", EPOCHS], {**ALLOCATOR, "PYTHONPATH": str(ROOT / "src")})
    return float(re.findall(r"^\d+\.\d+$", printed, re.MULTILINE)[-1])


def timm_command(script: Path, data: Path, network: str, out: Path, precision: str) -> list[object]:
    model, side, batch = NETWORKS[network]
    words = [sys.executable, script, "--data-dir", data, "--train-split", "train", "--val-split", "test"]
    words += ["--model", model.removeprefix("timm:"), "--img-size", side, "-b", batch, "--epochs", EPOCHS]
    words += ["--opt", "sgd", "--lr", 0.01, "--sched", "cosine", "--device", "cpu", "--workers", 2, "--output", out]
    words += ["--channels-last", "--no-prefetcher", "--log-interval", 1]
    return [*words, "--amp", "--amp-dtype", "bfloat16"] if precision == "bf16" else words


def timm(script: Path, network: str, data: Path, precision: str) -> float:
    """Images per second: the average that timm prints with the last step of its last epoch."""
    with tempfile.TemporaryDirectory() as folder:
        words = [*timm_command(script, data, network, Path(folder), precision), "--num-classes", 10]
        printed = call(words, {**ALLOCATOR, "CUDA_VISIBLE_DEVICES": ""})
    return float(re.findall(r"Train: \d+ .*\(\s*[\d.]+s,\s*([\d.]+)/s\)", printed)[-1])


def measure(args: argparse.Namespace, found: dict) -> None:
    """Add to every network's tools until each has ``args.repeats`` figures."""
    for network in args.networks.split(","):
        rows = found["networks"].setdefault(network, {tool: [] for tool in TOOLS})
        runs = {
            "ours_fp32": lambda data, _, n=network: ours(ROOT, n, data, "--precision", "fp32"),
            "ours_bf16": lambda data, _, n=network: ours(ROOT, n, data, "--precision", "bf16"),
            "plain": lambda data, precision, n=network: peer("plain", n, data, precision),
            "lightning": lambda data, precision, n=network: peer("lightning", n, data, precision),
        }
        if args.before:
            runs["before"] = lambda data, _, n=network: ours(args.before.resolve(), n, data)
        if args.timm and NETWORKS[network][0].startswith("timm:"):
            runs["timm"] = lambda data, precision, n=network: timm(args.timm.resolve(), n, data, precision)
        with tempfile.TemporaryDirectory() as folder:
            data = make_images(network, IMAGES[network] // (8 if args.quick else 1), Path(folder))
            precisions = found.setdefault("peer_precision", {}).setdefault(network, {})
            for tool in {"plain", "lightning", "timm"} & set(runs) - set(precisions):
                speeds = {precision: runs[tool](data, precision) for precision in ("fp32", "bf16")}
                precisions[tool] = max(speeds, key=speeds.get)
            while waiting := [tool for tool in runs if len(rows[tool]) < args.repeats]:
                for tool in random.sample(waiting, len(waiting)):
                    rows[tool].append(runs[tool](data, precisions.get(tool)))
                    print(f"{network} {tool}: {rows[tool][-1]:,.1f} passes per second", flush=True)
                    write(args.out, "cpu", found)


def write_files(shards: Path, folder: Path) -> None:
    """Write the training and test photographs of parquet shards as folders of classes."""
    import pyarrow.parquet as pq

    for part in ("train", "test"):
        for shard in sorted(shards.glob(f"{part}-*.parquet")):
            table = pq.read_table(shard, columns=["image", "label"])
            for i, (image, label) in enumerate(zip(table["image"].to_pylist(), table["label"].to_pylist())):
                place = folder / part / f"{label:03d}"
                place.mkdir(parents=True, exist_ok=True)
                (place / f"{shard.stem}-{i}.jpg").write_bytes(image["bytes"])


def whole_command(args: argparse.Namespace, found: dict) -> None:
    """Time both commands from start to end. timm scores the test images after each epoch, ours twice at the end."""
    network = "efficientnet-lite0-128"
    times = found.setdefault("whole_command", {"ours": [], "timm": []})
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        write_files(args.grocery, data)
        while len(times["timm"]) < args.repeats or len(times["ours"]) < args.repeats:
            tool = "ours" if len(times["ours"]) <= len(times["timm"]) else "timm"
            out = Path(folder, f"{tool}{len(times[tool])}")
            if tool == "ours":
                words, variables = train_command(data, network, out), {"PYTHONPATH": str(ROOT / "src")}
            else:
                words = [*timm_command(args.timm.resolve(), data, network, out, "fp32"), "--num-classes", 81]
                variables = {"CUDA_VISIBLE_DEVICES": ""}
            start = time.perf_counter()
            call(words, variables)
            times[tool].append(time.perf_counter() - start)
            print(f"whole command, {tool}: {times[tool][-1]:.1f} s", flush=True)
            write(args.out, "cpu", found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--before", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--timm", type=Path, help="timm's train.py")
    parser.add_argument("--grocery", type=Path, help="a folder of parquet shards: time whole commands on it")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="an eighth of the images, to try the script")
    args = parser.parse_args()
    found = json.loads(args.out.read_text()) if args.out.exists() else {"networks": {}}
    if args.grocery:
        whole_command(args, found)
    else:
        measure(args, found)


if __name__ == "__main__":
    main()
