"""How fast `transnet train` trains: image passes a second, end to end over whole epochs, evaluation apart.

    python benchmarks/training_speed.py DATA --out results/training_speed.json
    python benchmarks/training_speed.py digits --device cpu --quick --out speed.json       # to try the script

DATA is CIFAR-100 for the figures of the project. An image pass is one image through the network under one transform.
Parts: ``speed`` (batch 64 and 512, one and two heads, beside the bare captured step without data or bookkeeping),
``naive`` (what a user writes first: a DataLoader, one eager forward per transform), ``growth`` (one to four heads, and
shares of the data) and ``large`` (ResNet-50 for 32×32, ResNet-18 at 224, on made-up images).
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from environment import environment
from transnet import TransNet, backbones, d4
from transnet.data import open_data
from transnet.data.augment import plan
from transnet.train.config import configured
from transnet.train.device import determinism, find_device
from transnet.train.distributed import World
from transnet.train.loop import Trainer

ROTATIONS = ("r0", "r1", "r2", "r3")


class Bench:
    """Trainers for one data set on one device, timed."""

    def __init__(self, args):
        self.args = args
        self.epochs = 2 if args.quick else 3

    def trainer(self, data=None, **settings):
        folder = tempfile.mkdtemp()
        data = data or self.args.data
        given = {"evaluate_every": 0, "tensorboard": False, "epochs": 50, "device": self.args.device, **settings}
        config = configured(data, str(Path(folder) / "run"), **given)
        trainer = Trainer(config, World(), find_device(config.device, World()), None, quiet=True)
        start = time.perf_counter()
        trainer.prepare()
        trainer.step.prepare()
        self.wait()
        return trainer, time.perf_counter() - start

    def wait(self):
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def epoch_seconds(self, trainer):
        """Whole epochs as the loop runs them: drawing the plan, copying it, every step, looking at the losses."""
        times = []
        for epoch in range(self.epochs + 1):
            self.wait()
            start = time.perf_counter()
            trainer.run_epoch(epoch)
            self.wait()
            times.append(time.perf_counter() - start)
        return statistics.median(times[1:])

    def bare_seconds(self, trainer):
        """The captured step alone, once and again, for as many steps as an epoch has."""
        step, feed = trainer.step, trainer.feed
        if not step.capture:
            return None
        graph = step.graph(feed.size(0))
        drawn = plan(len(feed.order), seed=0, epoch=0, batches=feed.steps, flip=True)
        times = []
        for _ in range(self.epochs):
            step.start(drawn, 0, 0)
            self.wait()
            start = time.perf_counter()
            for _ in range(feed.steps - 1):
                graph.replay()
            self.wait()
            times.append((time.perf_counter() - start) / (feed.steps - 1))
        return statistics.median(times)

    def row(self, m, batch, **settings):
        trainer, prepared = self.trainer(transforms=",".join(ROTATIONS[:m]), batch_size=batch, **settings)
        n, steps = len(trainer.data.train), trainer.feed.steps
        seconds, bare = self.epoch_seconds(trainer), self.bare_seconds(trainer)
        row = {
            "model": trainer.config.model, "m": m, "batch": batch, "images": n, "seconds_per_epoch": seconds,
            "passes_per_second": n * m / seconds, "compile_seconds": prepared,
            "bare_passes_per_second": batch * m / bare if bare else None,
            "overhead": seconds / (bare * n / batch) - 1 if bare else None,
            "last_batch": n - (steps - 1) * batch, **settings,
        }  # fmt: skip
        print(
            f"{row['model']:<22} m={m} batch {batch:<5} {n:>6,} images: {row['passes_per_second']:>9,.0f} passes/s"
            + (f", bare step {row['bare_passes_per_second']:>9,.0f}" if bare else ""),
            flush=True,
        )
        return row

    def naive(self, batch, steps):
        """A DataLoader with torchvision's transforms, and one forward per transform, eager, in TF32."""
        from torchvision.transforms import v2

        device = "cuda" if torch.cuda.is_available() and self.args.device != "cpu" else "cpu"
        data = open_data(self.args.data)
        transform = v2.Compose([
            v2.ToImage(), v2.RandomCrop(data.image_size, padding=data.augmentation.pad), v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True), v2.Normalize(data.mean, data.std),
        ])  # fmt: skip

        class Items(torch.utils.data.Dataset):
            def __len__(self):
                return len(data.train)

            def __getitem__(self, i):
                return transform(images[i]), labels[i]

        images, labels = data.train.resident(data.image_size).numpy(), data.train.labels
        workers = 0 if self.args.quick else 12
        loader = torch.utils.data.DataLoader(
            Items(), batch, shuffle=True, num_workers=workers, pin_memory=device == "cuda", drop_last=True
        )
        name = "resnet8-small" if self.args.quick else "resnet18-cifar"
        model = backbones.create(name, num_classes=len(data.classes), in_channels=data.channels)
        net = TransNet(model, ("r0", "r1")).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
        torch.set_float32_matmul_precision("high")
        done, start = 0, 0.0
        for k, (x, y) in enumerate(loader):
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)  # noqa: PLW2901
            losses = [
                F.cross_entropy(g(net.backbone(d4.apply(t, x))), y)
                for t, g in zip(net.transforms, net.heads, strict=True)
            ]
            (sum(losses) / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
            if k == 9:
                self.wait()
                start = time.perf_counter()
            elif k > 9:
                done += 1
            if done == steps:
                break
        self.wait()
        speed = done * batch * 2 / (time.perf_counter() - start)
        print(f"naive loop, m=2 batch {batch}: {speed:,.0f} passes/s", flush=True)
        return {"m": 2, "batch": batch, "steps": done, "workers": workers, "passes_per_second": speed}


def made_up(folder, n, side):
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (n, side, side, 3), dtype=np.uint8)
    path = Path(folder) / f"random{side}.npz"
    np.savez(path, x=x, y=np.arange(n) % 10)
    return str(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--out", required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--parts", default="speed,naive,growth,large")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to try the script")
    args = parser.parse_args()
    bench = Bench(args)
    model = {"model": "resnet8-small"} if args.quick else {}
    found = {"rows": [], "data": Path(args.data).name}
    parts = {
        "speed": lambda: {"speed": [bench.row(m, b, **model) for m, b in ((2, 512), (2, 64), (1, 512))]},
        "naive": lambda: {"naive": bench.naive(64, 20 if args.quick else 150)},
        "growth": lambda: {
            "heads": [bench.row(m, 512, **model) for m in (1, 2, 3, 4)],
            "data_shares": [bench.row(2, 512, train_fraction=share, **model) for share in (0.125, 0.25, 0.5, 1.0)],
        },
        "large": lambda: large(bench, quick=args.quick),
    }
    for part in args.parts.split(","):
        with determinism(False, cuda=torch.cuda.is_available()):
            found |= parts[part]()
        with open(args.out, "w") as file:  # after every part: a stretch of GPU time may end at any moment
            json.dump(found | environment("cuda" if torch.cuda.is_available() else "cpu"), file, indent=1)
    if "speed" in found and "naive" in found:
        ratio = found["speed"][1]["passes_per_second"] / found["naive"]["passes_per_second"]
        print(f"batch 64: {ratio:.1f} times the naive loop")


def large(bench, *, quick):
    with tempfile.TemporaryDirectory() as folder:
        small, wide = made_up(folder, 640 if quick else 20_480, 32), made_up(folder, 64 if quick else 5_120, 224)
        rows = [bench.row(2, 512, data=small, model="resnet8-small" if quick else "resnet50-cifar")]
        rows.append(bench.row(2, 64 if quick else 256, data=wide, model="torchvision:resnet18", image_size=224))
    return {"large": rows}


if __name__ == "__main__":
    main()
