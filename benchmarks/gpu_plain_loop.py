"""A plain loop that trains a ResNet-18 on CIFAR-100 with one head per rotation, by torch and torchvision alone.

    python benchmarks/gpu_plain_loop.py FOLDER --heads 2 --seed 0

It is what `transnet train` is compared with on a GPU: written in an hour by somebody who knows what is fast. All images
are on the GPU, where whole batches are cropped and flipped. The network is in channels-last format, compiled, in bf16
autocast, and sees all rotations of a batch in one forward. Optimizer, schedule, augmentation and loss are those of the
recipe `fast`. FOLDER is torchvision's: CIFAR-100 is downloaded to it.
"""

import argparse
import json
import math
import time

import torch
import torch.nn.functional as F
import torchvision
from torch import nn

BATCH, EPOCHS, LR, WARMUP, MOMENTUM, WEIGHT_DECAY, SMOOTHING, PAD = 512, 60, 0.4, 0.2, 0.9, 1e-3, 0.1, 4


class Network(nn.Module):
    """A ResNet-18 for small images. It returns logits (B, heads, classes): head j sees the image rotated j times."""

    def __init__(self, heads, classes, channels):
        super().__init__()
        self.backbone = torchvision.models.resnet18(num_classes=classes)
        self.backbone.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(self.backbone.conv1.weight, mode="fan_out", nonlinearity="relu")
        self.backbone.maxpool = self.backbone.fc = nn.Identity()
        self.heads = nn.ModuleList([nn.Linear(512, classes) for _ in range(heads)])

    def forward(self, x):
        copies = torch.cat([torch.rot90(x, j, (2, 3)) for j in range(len(self.heads))])
        features = self.backbone(copies.contiguous(memory_format=torch.channels_last)).chunk(len(self.heads))
        return torch.stack([head(part) for head, part in zip(self.heads, features, strict=True)], 1)


class Loop:
    """The training of one network. ``mode`` is that of `torch.compile`, or "off"."""

    def __init__(self, data, *, heads, batch=BATCH, epochs=EPOCHS, seed=0, mode="default", flip=True):
        torch.manual_seed(seed)
        torch.backends.cudnn.benchmark = True
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.data = {name: value.to(self.device) for name, value in data.items() if torch.is_tensor(value)}
        self.mean, self.std = (torch.tensor(data[name], device=self.device) for name in ("mean", "std"))
        x = F.pad(self.normalise(self.data["x_train"]), (0, 0, PAD, PAD, PAD, PAD))  # by the mean colour
        self.padded = x.bfloat16() if self.device.type == "cuda" else x
        self.batch, self.flip, self.side = batch, flip, self.data["x_train"].shape[1]
        self.n = len(self.data["y_train"])
        net = Network(heads, int(self.data["y_train"].max()) + 1, x.shape[-1])
        self.net = net.to(self.device, memory_format=torch.channels_last)
        self.loss = self.loss_of if mode == "off" else torch.compile(self.loss_of, mode=mode, dynamic=False)
        self.optimizer = torch.optim.SGD(
            self.net.parameters(), lr=LR, momentum=MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY, fused=True
        )
        total = epochs * math.ceil(self.n / batch)
        peak = max(WARMUP * total, 1)

        def rate(step):
            step = min(step + 1, total)
            return step / peak if step < peak else (1 + math.cos(math.pi * (step - peak) / (total - peak + 1))) / 2

        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, rate)

    def normalise(self, x):
        return (x / 255 - self.mean) / self.std

    def autocast(self):
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    def loss_of(self, index):
        """Crop and flip a batch, and return the mean over heads of its cross-entropy."""
        b, span = len(index), torch.arange(self.side, device=self.device)
        top, left = torch.randint(0, 2 * PAD + 1, (2, b, 1), device=self.device)
        flip = (torch.rand(b, 1, device=self.device) < 0.5) & self.flip
        columns = left + torch.where(flip, self.side - 1 - span, span)
        x = self.padded[index[:, None, None], (top + span)[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
        with self.autocast():
            logits = self.net(x)
        target = self.data["y_train"][index][:, None].expand(-1, logits.shape[1])
        return F.cross_entropy(logits.float().flatten(0, 1), target.flatten(), label_smoothing=SMOOTHING)

    def epoch(self):
        """Train on every image once. The last, smaller batch is not compiled."""
        self.net.train()
        for index in torch.randperm(self.n, device=self.device).split(self.batch):
            loss = (self.loss if len(index) == self.batch else self.loss_of)(index)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.schedule.step()

    @torch.no_grad()
    def accuracy(self):
        """Return the percentages of test images that the first head and all heads together have right."""
        self.net.eval()
        right = torch.zeros(2, device=self.device)
        batches = zip(self.data["x_test"].split(1000), self.data["y_test"].split(1000), strict=True)
        for x, y in batches:
            logits = self.net(self.normalise(x).permute(0, 3, 1, 2))
            right += torch.stack([(part.argmax(1) == y).sum() for part in (logits[:, 0], logits.mean(1))])
        return (100 * right / len(self.data["y_test"])).tolist()


def train(data, *, heads, seed=0, epochs=EPOCHS, **options):
    """Train a network, and return its accuracies in percent and the passes per second after the first epoch."""
    loop = Loop(data, heads=heads, seed=seed, epochs=epochs, **options)
    start = time.perf_counter()
    for epoch in range(epochs):
        loop.epoch()
        if epoch == 0 and loop.device.type == "cuda":  # it includes compiling
            torch.cuda.synchronize()
            start = time.perf_counter()
    if loop.device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    one, together = loop.accuracy()
    passes = loop.n * heads * max(epochs - 1, 1) / seconds
    return {"one_head": one, "all_heads": together, "passes_per_second": passes}


def cifar100(folder):
    """Return the images (N, H, W, C) and labels of both parts, and the statistics of the training images."""
    data = {}
    for part in ("train", "test"):
        images = torchvision.datasets.CIFAR100(folder, train=part == "train", download=True)
        data |= {f"x_{part}": torch.from_numpy(images.data), f"y_{part}": torch.tensor(images.targets)}
    x = data["x_train"].float() / 255
    return data | {"mean": x.mean((0, 1, 2)).tolist(), "std": x.std((0, 1, 2)).tolist()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--mode", default="default", help="of torch.compile, or off")
    args = vars(parser.parse_args())
    print(json.dumps(train(cifar100(args.pop("folder")), **args)))


if __name__ == "__main__":
    main()
