"""One training run of a peer, for `cpu_speed.py`: prints the passes per second of its last epoch.

    python benchmarks/cpu_peers.py plain efficientnet-lite0-128 FOLDER --precision bf16

``plain`` is a loop around a DataLoader, and ``lightning`` is Lightning's Trainer with the same DataLoader. Both use the
channels-last format.
"""

import argparse
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from cpu_speed import NETWORKS
from transnet import backbones

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Arrays(Dataset):
    """Images of an .npz file."""

    def __init__(self, path, transform):
        with np.load(path) as arrays:
            self.x, self.y = torch.from_numpy(arrays["x_train"]).permute(0, 3, 1, 2), arrays["y_train"].tolist()
        self.transform = transform

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.transform(self.x[i]), self.y[i]


def loader(data, side, batch):
    """Return batches with the same augmentation as the project's: a random crop and a flip."""
    tail = [v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    if data.suffix == ".npz":
        images = Arrays(data, v2.Compose([v2.RandomCrop(side, padding=4), *tail]))
    else:
        crop = [v2.ToImage(), v2.Resize(144, antialias=True), v2.RandomCrop(side)]
        images = ImageFolder(data / "train", v2.Compose([*crop, *tail]))
    return DataLoader(images, batch, shuffle=True, num_workers=2, persistent_workers=True)


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4)


def plain(model, batches, epochs, precision):
    """Train with a loop, and return the seconds of the last epoch."""
    optimizer, seconds = optimizer_of(model), 0.0
    autocast = torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else nullcontext()
    for _ in range(epochs):
        start = time.perf_counter()
        for x, y in batches:
            with autocast:
                logits = model(x.contiguous(memory_format=torch.channels_last))
            F.cross_entropy(logits.float(), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        seconds = time.perf_counter() - start
    return seconds


def lightning(model, batches, epochs, precision):
    """Train with Lightning, and return the seconds of the last epoch."""
    import lightning as L

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.seconds, self.start = model, 0.0, 0.0

        def training_step(self, batch, _):
            x, y = batch
            return F.cross_entropy(self.model(x.contiguous(memory_format=torch.channels_last)).float(), y)

        def configure_optimizers(self):
            return optimizer_of(self.model)

        def on_train_epoch_start(self):
            self.start = time.perf_counter()

        def on_train_epoch_end(self):
            self.seconds = time.perf_counter() - self.start

    module = Module()
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=epochs, precision="bf16-mixed" if precision == "bf16" else "32-true",
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, batches)
    return module.seconds


def build(network) -> nn.Module:
    name, side, _ = NETWORKS[network]
    model = backbones.create(name, num_classes=10, in_channels=3, image_size=side)
    return model.to(memory_format=torch.channels_last).train()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=["plain", "lightning"])
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("data", type=Path)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    _, side, batch = NETWORKS[args.network]
    batches = loader(args.data, side, batch)
    train = {"plain": plain, "lightning": lightning}[args.peer]
    print(len(batches.dataset) / train(build(args.network), batches, args.epochs, args.precision))


if __name__ == "__main__":
    main()
