"""TransNet under Hugging Face Accelerate: any number of GPUs, mixed precision, the same loop.

accelerate launch examples/with_accelerate.py --epochs 10
"""

import argparse

import torch
from accelerate import Accelerator
from digits import digits
from torch.utils.data import DataLoader

from transnet import TransNet, heads_loss
from transnet.backbones import create


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
    wrapped, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(train, batch_size=128, shuffle=True))
    for _ in range(options.epochs):
        for x, y in loader:
            loss = heads_loss(wrapped(x), y)  # the wrapper's own forward, so that gradients are shared
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()

    model = accelerator.unwrap_model(wrapped).eval().prune()
    x, y = (tensor.to(accelerator.device) for tensor in test.tensors)
    with torch.no_grad():
        accelerator.print(f"pruned: {(model(x).argmax(1) == y).float().mean():.1%}")


if __name__ == "__main__":
    main()
