"""How fast `transnet train` trains: image passes per second, end to end over whole epochs, without evaluation.

    python benchmarks/training_speed.py DATA --warm --out results/training_speed.json
    python benchmarks/training_speed.py digits --device cpu --quick --out speed.json       # to try the script

DATA is CIFAR-100 for the figures of the project. An image pass is one image through the network under one transform.
Parts: ``speed`` (batch 64 and 512, one and two heads, each epoch beside as many bare captured steps without data or
bookkeeping), ``naive`` (a simple loop: a DataLoader, one eager forward per transform; in turns with ours), ``heads``
(one to four), ``shares`` (of the data) and ``large`` (ResNet-50 for 32×32, ResNet-18 at 224, on synthetic images).
Every figure is a median over the rounds: at least three, and up to nine in the first ten seconds.
"""

import multiprocessing
import statistics
import tempfile
import time
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch._inductor.runtime.cache_dir_utils import cache_dir

from measuring import options, wait, write
from trainers import start_epoch, trainer
from transnet import TransNet, backbones, d4
from transnet.data import open_data
from transnet.train.device import determinism


class Bench:
    """The measurements on one data set and device."""

    def __init__(self, args):
        self.args = args
        self.rounds, self.seconds = (2, 0) if args.quick else (3, 10)

    @cache  # noqa: B019 (there is one Bench per process)
    def row(self, m, batch, **settings):
        """A row of the table; one that several parts have is measured once."""
        start = time.perf_counter()
        made = trainer(self.args, m, batch, **settings)
        wait()
        prepared = time.perf_counter() - start
        n, steps = len(made.setup.data.train), made.setup.feed.steps
        made.train_epoch(0)
        rounds, start = [], time.perf_counter()
        while len(rounds) < self.rounds or (len(rounds) < 9 and time.perf_counter() - start < self.seconds):
            rounds.append((epoch_seconds(made, len(rounds) + 1), bare_seconds(made)))
        seconds = statistics.median(epoch for epoch, _ in rounds)
        bare = statistics.median(step for _, step in rounds) if rounds[0][1] else None
        row = {
            "model": made.setup.config.model, "m": m, "batch": batch, "images": n, "seconds_per_epoch": seconds,
            "passes_per_second": n * m / seconds, "prepare_seconds": prepared,
            "bare_passes_per_second": batch * m / bare if bare else None,
            "overhead": seconds / (bare * n / batch) - 1 if bare else None,
            "last_batch": n - (steps - 1) * batch, "rounds": [epoch for epoch, _ in rounds], **settings,
        }  # fmt: skip
        row.pop("data", None)
        print(
            f"{row['model']:<22} m={m} batch {batch:<5} {n:>6,} images: {row['passes_per_second']:>9,.0f} passes/s"
            + (f", bare step {row['bare_passes_per_second']:>9,.0f}, {row['overhead']:+.1%}" if bare else ""),
            flush=True,
        )
        return row

    def beside_naive(self, batch, steps):
        """Ours and the simple loop in turns."""
        made, naive = trainer(self.args, 2, batch), Naive(self.args, batch)
        made.train_epoch(0)
        found = {"ours": [], "naive": []}
        for r in range(self.rounds):
            found["ours"].append(len(made.setup.data.train) * 2 / epoch_seconds(made, r + 1))
            found["naive"].append(naive.passes_per_second(steps))
        ours, theirs = map(statistics.median, found.values())
        print(f"m=2 batch {batch}: {ours:,.0f} passes/s, simple loop {theirs:,.0f}", flush=True)
        return {"m": 2, "batch": batch, "steps": steps, "workers": naive.workers, "ratio": ours / theirs, **found}


def epoch_seconds(made, epoch):
    """A whole epoch as the trainer runs it: drawing the plan, copying it, every step."""
    wait()
    start = time.perf_counter()
    made.train_epoch(epoch)
    wait()
    return time.perf_counter() - start


def bare_seconds(made):
    """The time of a step if only captured steps run, over the steps of an epoch; None without captured steps."""
    step, feed = made.step, made.setup.feed
    if not step.capture or feed.steps < 2:
        return None
    graph = step.graphs[feed.size(0)]
    start_epoch(made)
    wait()
    start = time.perf_counter()
    for _ in range(feed.steps - 1):
        graph.replay()
    wait()
    return (time.perf_counter() - start) / (feed.steps - 1)


class Naive:
    """A DataLoader with torchvision's transforms, and one forward per transform, eager, in TF32."""

    def __init__(self, args, batch):
        from torchvision.transforms import v2

        self.device = "cuda" if torch.cuda.is_available() and args.device != "cpu" else "cpu"
        self.workers, self.batch = 0 if args.quick else 12, batch
        data = open_data(args.data)
        transform = v2.Compose([
            v2.ToImage(), v2.RandomCrop(data.image_size, padding=data.geometry.pad), v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True), v2.Normalize(data.mean, data.std),
        ])  # fmt: skip
        images, labels = data.train.resident(data.geometry.stored).numpy(), data.train.labels

        class Items(torch.utils.data.Dataset):
            def __len__(self):
                return len(data.train)

            def __getitem__(self, i):
                return transform(images[i]), labels[i]

        self.loader = torch.utils.data.DataLoader(
            Items(), batch, shuffle=True, num_workers=self.workers, pin_memory=self.device == "cuda", drop_last=True
        )
        name = "resnet8-small" if args.quick else "resnet18-cifar"
        model = backbones.create(name, num_classes=len(data.classes), in_channels=data.channels)
        self.net = TransNet(model, ("r0", "r1")).to(self.device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.05, 0.9, nesterov=True, weight_decay=5e-4)

    def passes_per_second(self, steps, warm_up=10):
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        start, done = 0.0, -warm_up
        for x, y in self.loader:
            if done == 0:
                wait()
                start = time.perf_counter()
            if done == steps:
                break
            done += 1
            self._step(x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True))
        wait()
        seconds = time.perf_counter() - start
        torch.set_float32_matmul_precision(precision)
        return done * self.batch * 2 / seconds

    def _step(self, x, y):
        net = self.net
        losses = [
            F.cross_entropy(g(net.backbone(d4.apply(t, x))), y) for t, g in zip(net.transforms, net.heads, strict=True)
        ]
        (sum(losses) / 2).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def synthetic(n, side):
    """A data set of random images."""
    x = np.random.default_rng(0).integers(0, 256, (n, side, side, 3), dtype=np.uint8)
    path = Path(tempfile.mkdtemp()) / f"random{side}.npz"
    np.savez(path, x=x, y=np.arange(n) % 10)
    return str(path)


def rows_of(part, quick):
    """The rows of a part: the key of the results file and keyword arguments of `Bench.row`."""
    if part == "speed":
        return part, [{"m": m, "batch": b} for m, b in ((2, 512), (2, 64), (1, 512))]
    if part == "heads":
        return part, [{"m": m, "batch": 512} for m in (1, 2, 3, 4)]
    if part == "shares":
        shares = [{"train_fraction": share} for share in (0.125, 0.25, 0.5)]
        return "data_shares", [{"m": 2, "batch": 512, **share} for share in (*shares, {})]
    if quick:
        sizes = [(64, "resnet8-small", 640, 32), (16, "resnet8-small", 64, 224)]
    else:
        sizes = [(512, "resnet50-cifar", 20_480, 32), (256, "torchvision:resnet18", 5_120, 224)]
    return part, [{"m": 2, "batch": batch, "data": synthetic(n, side), "model": model, "image_size": side}
                  for batch, model, n, side in sizes]  # fmt: skip


def compile_only(args, row):
    with determinism(False, cuda=True):
        trainer(args, **row)


def warm(args, wanted):
    """Fill the compiler's cache, several rows at once, so that no measurement has to compile.

    The fastest tiling of each kernel was then chosen while others used the GPU, so that choice is deleted.
    """
    context = multiprocessing.get_context("spawn")
    with context.Pool(7, maxtasksperchild=1) as pool:
        pool.starmap(compile_only, [(args, row) for row in wanted], chunksize=1)
    for choice in Path(cache_dir()).rglob("*.best_config"):
        choice.unlink()


def main():
    known = ("speed", "naive", "heads", "shares", "large")
    parser = options(__doc__, device="auto", parts=",".join(known))
    parser.add_argument("data")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to try the script")
    parser.add_argument("--warm", action="store_true", help="compile everything first, in parallel")
    args = parser.parse_args()
    parts = args.parts.split(",")
    if unknown := [part for part in parts if part not in known]:
        parser.error(f"--parts: {unknown[0]!r} is unknown; there are {', '.join(known)}")
    tables = {part: rows_of(part, args.quick) for part in parts if part != "naive"}
    if args.warm:
        wanted = [row for _, rows in tables.values() for row in rows]
        warm(args, [row for i, row in enumerate(wanted) if row not in wanted[:i]])
    bench, found = Bench(args), {"data": Path(args.data).name}
    with determinism(False, cuda=torch.cuda.is_available()):
        for part in parts:
            if part == "naive":
                found["naive"] = bench.beside_naive(64, 20 if args.quick else 150)
                write(args.out, "auto", found)
                continue
            key, rows = tables[part]
            found[key] = []
            for row in rows:
                found[key].append(bench.row(**row))
                write(args.out, "auto", found)  # after every row: time on a GPU may end at any moment


if __name__ == "__main__":
    main()
