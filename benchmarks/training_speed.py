"""How fast `transnet train` trains: image passes a second, end to end over whole epochs, evaluation apart.

    python benchmarks/training_speed.py DATA --warm --out results/training_speed.json
    python benchmarks/training_speed.py digits --device cpu --quick --out speed.json       # to try the script

DATA is CIFAR-100 for the figures of the project. An image pass is one image through the network under one transform.
Parts: ``speed`` (batch 64 and 512, one and two heads, each epoch beside as many bare captured steps without data or
bookkeeping), ``naive`` (what a user writes first: a DataLoader, one eager forward per transform; in turns with ours),
``heads`` (one to four), ``shares`` (of the data) and ``large`` (ResNet-50 for 32×32, ResNet-18 at 224, on made-up
images). Every figure is a median over the rounds: three at least, and up to nine in the first ten seconds.
"""

import json
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch._inductor.runtime.cache_dir_utils import cache_dir

from measuring import options, write
from transnet import TransNet, backbones, d4
from transnet.data import open_data
from transnet.data.augment import plan_epoch
from transnet.runs.config import TrainConfig
from transnet.train.device import determinism
from transnet.train.setup import Launch, prepare
from transnet.train.trainer import Trainer

ROTATIONS = ("r0", "r1", "r2", "r3")


class Bench:
    """Trainers for one data set on one device, timed."""

    def __init__(self, args):
        self.args = args
        self.rounds, self.seconds = (2, 0) if args.quick else (3, 10)
        self.known = {}
        self.small = {"model": "resnet8-small"} if args.quick else {}

    def trainer(self, m, batch, data=None, **settings):
        config = TrainConfig.for_data(
            data or self.args.data, str(Path(tempfile.mkdtemp()) / "run"), evaluate_every=0, tensorboard=False,
            device=self.args.device, transforms=",".join(ROTATIONS[:m]), batch_size=batch, **{**self.small, **settings},
        )  # fmt: skip
        start = time.perf_counter()
        trainer = Trainer(prepare(Launch.of(config, quiet=True)))
        trainer.step.prepare()
        wait()
        return trainer, time.perf_counter() - start

    def row(self, **settings):
        """A row of the table; one that several parts have is measured once."""
        key = json.dumps(settings, sort_keys=True)
        if key not in self.known:
            self.known[key] = self.measured(**settings)
        return self.known[key]

    def measured(self, m, batch, **settings):
        trainer, prepared = self.trainer(m, batch, **settings)
        n, steps = len(trainer.setup.data.train), trainer.setup.feed.steps
        trainer.train_epoch(0)
        rounds, start = [], time.perf_counter()
        while len(rounds) < self.rounds or (len(rounds) < 9 and time.perf_counter() - start < self.seconds):
            rounds.append((epoch_seconds(trainer, len(rounds) + 1), bare_seconds(trainer)))
        seconds = statistics.median(epoch for epoch, _ in rounds)
        bare = statistics.median(step for _, step in rounds) if rounds[0][1] else None
        row = {
            "model": trainer.setup.config.model, "m": m, "batch": batch, "images": n, "seconds_per_epoch": seconds,
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
        """Ours and the naive loop in turns."""
        trainer, _ = self.trainer(2, batch)
        naive = Naive(self.args, batch)
        trainer.train_epoch(0)
        ours, theirs = [], []
        for r in range(self.rounds):
            ours.append(len(trainer.setup.data.train) * 2 / epoch_seconds(trainer, r + 1))
            theirs.append(naive.passes_per_second(steps))
        ratio = statistics.median(ours) / statistics.median(theirs)
        print(f"m=2 batch {batch}: {statistics.median(ours):,.0f} passes/s, naive loop "
              f"{statistics.median(theirs):,.0f}: {ratio:.1f} times", flush=True)  # fmt: skip
        return {
            "m": 2, "batch": batch, "steps": steps, "workers": naive.workers, "ratio": ratio, "ours": ours,
            "naive": theirs,
        }  # fmt: skip


def wait():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def epoch_seconds(trainer, epoch):
    """A whole epoch as the loop runs it: drawing the plan, copying it, every step."""
    wait()
    start = time.perf_counter()
    trainer.train_epoch(epoch)
    wait()
    return time.perf_counter() - start


def bare_seconds(trainer):
    """Return the time of a step if only captured steps run, over the steps of an epoch."""
    step, feed = trainer.step, trainer.setup.feed
    if not step.capture or feed.steps < 2:
        return None
    graph = step.graphs[feed.size(0)]
    step.start(plan_epoch(len(feed.order), seed=0, epoch=0, batches=feed.steps, flip=True), 0, 0)
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

        class Items(torch.utils.data.Dataset):
            def __len__(self):
                return len(data.train)

            def __getitem__(self, i):
                return transform(images[i]), labels[i]

        images, labels = data.train.resident(data.geometry.stored).numpy(), data.train.labels
        self.loader = torch.utils.data.DataLoader(
            Items(), batch, shuffle=True, num_workers=self.workers, pin_memory=self.device == "cuda", drop_last=True
        )
        name = "resnet8-small" if args.quick else "resnet18-cifar"
        model = backbones.create(name, num_classes=len(data.classes), in_channels=data.channels)
        self.net = TransNet(model, ("r0", "r1")).to(self.device)
        parameters = self.net.parameters()
        self.optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)

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


def made_up(folder, n, side):
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (n, side, side, 3), dtype=np.uint8)
    path = Path(folder) / f"random{side}.npz"
    np.savez(path, x=x, y=np.arange(n) % 10)
    return str(path)


def large(args):
    """The rows that need made-up images: keyword arguments of `Bench.row`."""
    folder = tempfile.mkdtemp()
    if args.quick:
        small, wide = made_up(folder, 640, 32), made_up(folder, 64, 224)
        models, batches = ("resnet8-small",) * 2, (64, 16)
    else:
        small, wide = made_up(folder, 20_480, 32), made_up(folder, 5_120, 224)
        models, batches = ("resnet50-cifar", "torchvision:resnet18"), (512, 256)
    return [
        {"m": 2, "batch": batches[0], "data": small, "model": models[0]},
        {"m": 2, "batch": batches[1], "data": wide, "model": models[1], "image_size": 224},
    ]


def rows(args):
    """What is measured, part by part."""
    shares = [{"train_fraction": share} for share in (0.125, 0.25, 0.5)]
    parts = {
        "speed": [{"m": m, "batch": b} for m, b in ((2, 512), (2, 64), (1, 512))],
        "heads": [{"m": m, "batch": 512} for m in (1, 2, 3, 4)],
        "data_shares": [{"m": 2, "batch": 512, **share} for share in (*shares, {})],
    }
    return parts | ({"large": large(args)} if "large" in args.parts else {})


def compile_only(args, row):
    with determinism(False, cuda=True):
        Bench(args).trainer(**row)


def warm(args, wanted):
    """Fill the compiler's cache, several rows at once: the measuring that follows finds every kernel there.

    Which tiling of a kernel is the fastest was then decided while others used the GPU: that is forgotten again.
    """
    context = multiprocessing.get_context("spawn")
    with context.Pool(7, maxtasksperchild=1) as pool:
        pool.starmap(compile_only, [(args, row) for row in wanted], chunksize=1)
    for choice in Path(cache_dir()).rglob("*.best_config"):
        choice.unlink()


def main():
    parser = options(__doc__, device="auto", parts="speed,naive,heads,shares,large")
    parser.add_argument("data")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to try the script")
    parser.add_argument("--warm", action="store_true", help="compile everything first, in parallel")
    args = parser.parse_args()
    bench, parts = Bench(args), rows(args)
    order = {"speed": ["speed"], "naive": [], "heads": ["heads"], "shares": ["data_shares"], "large": ["large"]}
    asked = args.parts.split(",")
    if unknown := [part for part in asked if part not in order]:
        parser.error(f"--parts: {unknown[0]!r} is unknown; there are {', '.join(order)}")
    if args.warm:
        wanted = [row for part in asked for name in order[part] for row in parts[name]]
        warm(args, [row for i, row in enumerate(wanted) if row not in wanted[:i]])
    found = {"data": Path(args.data).name}

    def keep():  # after every row: time on a GPU may end at any moment
        write(args.out, "cuda" if torch.cuda.is_available() else "cpu", found)

    with determinism(False, cuda=torch.cuda.is_available()):
        for part in asked:
            if part == "naive":
                found["naive"] = bench.beside_naive(64, 20 if args.quick else 150)
                keep()
            for name in order[part]:
                found[name] = []
                for row in parts[name]:
                    found[name].append(bench.row(**row))
                    keep()


if __name__ == "__main__":
    main()
