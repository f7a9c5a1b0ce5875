"""Train with TransNet under Accelerate, on one or many GPUs: accelerate launch examples/with_accelerate.py --epochs 10

It trains on scikit-learn's digits and takes seconds on a CPU.
"""

import argparse

import torch
from accelerate import Accelerator
from digits import digits
from torch import nn
from torch.utils.data import DataLoader

from transnet import TransNet, heads_loss
from transnet.backbones import create


def accuracy(accelerator: Accelerator, model: nn.Module, loader: DataLoader) -> float:
    """Return the accuracy of any classifier, over all processes."""
    model.eval()
    right = []
    for x, y in loader:
        with torch.no_grad():
            right.append(accelerator.gather_for_metrics(model(x).argmax(1) == y))
    return float(torch.cat(right).float().mean())


def main() -> None:
    """Train, prune, measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    torch.manual_seed(0)
    train, test = digits()

    accelerator = Accelerator()
    net = TransNet(create("resnet8-small", num_classes=10, in_channels=1), ("r0", "r1"))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    train_loader, test_loader = DataLoader(train, batch_size=128, shuffle=True), DataLoader(test, batch_size=256)
    model, optimizer, train_loader, test_loader = accelerator.prepare(net, optimizer, train_loader, test_loader)
    for _ in range(options.epochs):
        model.train()
        for x, y in train_loader:
            loss = heads_loss(model(x), y)  # not net.loss, which would bypass the wrapper that shares gradients
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()

    pruned = accelerator.unwrap_model(model).prune()
    accelerator.print(f"both heads, two passes per image: {accuracy(accelerator, model, test_loader):.1%}")
    accelerator.print(f"pruned, one pass per image: {accuracy(accelerator, pruned, test_loader):.1%}")


if __name__ == "__main__":
    main()
