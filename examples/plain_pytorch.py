"""Train with TransNet in plain PyTorch, one line to wrap and one to prune: python examples/plain_pytorch.py --epochs 10

It trains on scikit-learn's digits and takes seconds on a CPU.
"""

import argparse

import torch
from digits import digits
from torch import nn
from torch.utils.data import DataLoader

from transnet import TransNet
from transnet.backbones import create


def accuracy(model: nn.Module, loader: DataLoader) -> float:
    """Return the accuracy of any classifier, with or without TransNet."""
    model.eval()
    with torch.no_grad():
        return sum(int((model(x).argmax(1) == y).sum()) for x, y in loader) / len(loader.dataset)


def main() -> None:
    """Train, prune, measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    torch.manual_seed(0)
    train, test = digits()
    train_loader, test_loader = DataLoader(train, batch_size=128, shuffle=True), DataLoader(test, batch_size=256)

    net = TransNet(create("resnet8-small", num_classes=10, in_channels=1), ("r0", "r1"))  # wrap
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=options.epochs * len(train_loader))
    for _ in range(options.epochs):
        net.train()
        for x, y in train_loader:
            loss = net.loss(x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()

    model = net.prune()  # the class that you wrapped, with its own state-dict keys
    print(f"both heads, two passes per image: {accuracy(net, test_loader):.1%}")
    print(f"pruned, one pass per image: {accuracy(model, test_loader):.1%}")


if __name__ == "__main__":
    main()
