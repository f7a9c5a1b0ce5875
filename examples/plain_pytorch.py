"""TransNet in a training loop of your own: one line to wrap, one line to prune.

python examples/plain_pytorch.py --epochs 10
"""

import argparse

import torch
from digits import digits
from torch.utils.data import DataLoader

from transnet import TransNet
from transnet.backbones import create


def main() -> None:
    """Train, prune, measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    torch.manual_seed(0)
    train, test = digits()
    loader = DataLoader(train, batch_size=128, shuffle=True)

    net = TransNet(create("resnet8-small", num_classes=10, in_channels=1), ("r0", "r1"))  # wrap
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=options.epochs * len(loader))
    for _ in range(options.epochs):
        for x, y in loader:
            loss = net.loss(x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()

    net.eval()
    model = net.prune()  # prune: the model you came with
    x, y = test.tensors
    with torch.no_grad():
        print(f"pruned, 1 pass an image:   {(model(x).argmax(1) == y).float().mean():.1%}")
        print(f"both heads, 2 passes:      {(net.predict(x).argmax(1) == y).float().mean():.1%}")


if __name__ == "__main__":
    main()
