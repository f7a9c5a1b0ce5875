"""Time the epochs of one of the tools that `gpu_speed.py` compares."""

import importlib.util
import itertools
import os
import sys
import tempfile
import time
from contextlib import suppress

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

import gpu_plain_loop
from measuring import wait
from trainers import trainer
from transnet import TransNet, backbones, d4
from transnet.data import open_data
from transnet.train.device import determinism

MODES = ("default", "reduce-overhead")  # of `torch.compile`


class Ended(Exception):
    """The parent wants no further epoch."""


class Turn:
    """Time an epoch whenever the parent asks for one: `start` waits for that."""

    def __init__(self, pipe, m):
        self.pipe, self.m, self.began = pipe, m, 0.0

    def start(self):
        if not self.pipe.recv():
            raise Ended
        wait()
        self.began = time.perf_counter()

    def end(self, images):
        wait()
        self.pipe.send(images * self.m / (time.perf_counter() - self.began))


def work(tool, args, m, batch, environment, pipe):
    """A process that trains epochs with one tool until the parent ends it."""
    os.environ |= environment
    with suppress(Ended, EOFError):
        TOOLS[tool](args, m, batch, Turn(pipe, m))


def ours(args, m, batch, turn):
    with determinism(False, cuda=on_gpu(args)):
        made = trainer(args, m, batch)
        for epoch in itertools.count():
            turn.start()
            made.train_epoch(epoch % made.setup.config.epochs)
            turn.end(len(made.setup.data.train))


def plain(mode):
    def run(args, m, batch, turn):
        loop = gpu_plain_loop.Loop(tensors(args), heads=m, batch=batch, mode=mode if on_gpu(args) else "off")
        while True:
            turn.start()
            loop.epoch()
            turn.end(loop.n)

    return run


class Images(Dataset):
    """Training images, each cropped and flipped by torchvision."""

    def __init__(self, data):
        from torchvision.transforms import v2

        self.x, self.y = data["x_train"].permute(0, 3, 1, 2), data["y_train"].tolist()
        self.transform = v2.Compose([v2.RandomCrop(self.x.shape[-1], padding=4), v2.RandomHorizontalFlip()])

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.transform(self.x[i]), self.y[i]


def lightning(mode):
    def run(args, m, batch, turn):
        try:
            import lightning as L
        except ImportError:
            import pytorch_lightning as L

        data, gpu = tensors(args), on_gpu(args)
        mean, std = (torch.tensor(data[name])[:, None, None] for name in ("mean", "std"))

        class Module(L.LightningModule):
            def __init__(self):
                super().__init__()
                net = TransNet(network(args, data), d4.NAMES[:m]).to(memory_format=torch.channels_last)
                self.net = torch.compile(net, mode=mode, dynamic=False) if gpu else net
                self.register_buffer("mean", mean)
                self.register_buffer("std", std)

            def training_step(self, batch, _):
                x, y = batch
                x = ((x / 255 - self.mean) / self.std).contiguous(memory_format=torch.channels_last)
                logits = self.net(x).float()
                return F.cross_entropy(logits.flatten(0, 1), y.repeat_interleave(m), label_smoothing=0.1)

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 0.01, 0.9, nesterov=True, weight_decay=1e-3, fused=gpu)

            def on_train_epoch_end(self):
                turn.end(len(batches) * batch)

        class Batches(DataLoader):
            def __iter__(self):
                turn.start()  # before its workers load the first batches
                return super().__iter__()

        n = workers(args)
        batches = Batches(Images(data), batch, shuffle=True, num_workers=n, pin_memory=gpu, persistent_workers=n > 0,
                          drop_last=True)  # fmt: skip
        tool = L.Trainer(
            accelerator="gpu" if gpu else "cpu", devices=1, precision="bf16-mixed" if gpu else "32-true",
            max_epochs=-1, benchmark=True, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        tool.fit(Module(), batches)

    return run


def timm(mode):
    def run(args, _, batch, turn):
        from torchvision.datasets import CIFAR100

        data, gpu = tensors(args), on_gpu(args)
        spec = importlib.util.spec_from_file_location("timm_train", args.timm)
        script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(script)
        # What `--dataset torch/cifar100` gives, without its files; and the network that the other tools train.
        images = CIFAR100.__new__(CIFAR100)
        x = data["x_train"]
        images.data, images.targets = x.expand(-1, -1, -1, 3).numpy(), data["y_train"].tolist()
        images.transforms = images.transform = images.target_transform = None
        script.create_dataset = lambda *_, **__: images
        script.create_model = lambda *_, **__: network(args, data, channels=3)
        epoch = script.train_one_epoch

        def timed(number, model, loader, *more, **named):
            turn.start()
            found = epoch(number, model, loader, *more, **named)
            turn.end(len(loader) * batch)
            return found

        script.train_one_epoch = timed
        words = f"--data-dir . --val-split= --num-classes {len(set(images.targets))} --img-size {x.shape[1]} -b {batch}"
        words += f" --workers {workers(args)} --epochs 1000000 --val-interval 1000000 --log-interval 1000000 --opt sgd"
        words += " --opt-kwargs fused=True --lr 0.01 --weight-decay 1e-3 --smoothing 0.1 --channels-last"
        words += " --scale 1 1 --ratio 1 1 --color-jitter 0 --train-interpolation bilinear"
        if gpu:
            words += " --amp --amp-dtype bfloat16 --pin-mem --torchcompile"
            words += "" if mode == "default" else f" --torchcompile-mode {mode}"
        else:
            words += " --device cpu --no-prefetcher"
        sys.argv = [args.timm, *words.split(), "--output", tempfile.mkdtemp()]
        script.main()

    return run


TOOLS = {"ours": ours}
TOOLS |= {f"{name} {mode}": make(mode) for name, make in (("plain", plain), ("lightning", lightning), ("timm", timm))
          for mode in MODES}  # fmt: skip


def on_gpu(args):
    return args.device != "cpu" and torch.cuda.is_available()


def workers(args):
    """Processes that load data: one for each core but two."""
    return 0 if args.quick else max(len(os.sched_getaffinity(0)) - 2, 1)


def network(args, data, channels=None):
    name = "resnet8-small" if args.quick else "resnet18-cifar"
    classes = int(data["y_train"].max()) + 1
    return backbones.create(name, num_classes=classes, in_channels=channels or data["x_train"].shape[-1])


def tensors(args):
    """The images and labels of DATA, as `gpu_plain_loop.py` reads them."""
    data = open_data(args.data, progress=False)
    found = {"mean": data.mean, "std": data.std}
    for part, split in (("train", data.train), ("test", data.test)):
        found |= {f"x_{part}": split.resident(data.geometry.stored, progress=False), f"y_{part}": split.labels}
    return found
