"""TransNet in Lightning: the ready-made module, and the callback that prunes when training ends.

python examples/with_lightning.py --epochs 10
"""

import argparse

import lightning
import torch
from digits import digits
from torch.utils.data import DataLoader

from transnet import TransNet
from transnet.backbones import create
from transnet.integrations.lightning import PruneAtEnd, TransNetModule


def main() -> None:
    """Train, prune, measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    lightning.seed_everything(0)
    train, test = digits()
    net = TransNet(create("resnet8-small", num_classes=10, in_channels=1), ("r0", "r1"))
    prune = PruneAtEnd()
    trainer = lightning.Trainer(
        max_epochs=options.epochs, callbacks=[prune], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    module = TransNetModule(net, lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9))
    trainer.fit(module, DataLoader(train, batch_size=128, shuffle=True), DataLoader(test, batch_size=256))
    print(f"both heads: {trainer.callback_metrics['val_accuracy']:.1%}")
    x, y = test.tensors
    with torch.no_grad():
        print(f"pruned: {(prune.model(x).argmax(1) == y).float().mean():.1%}")


if __name__ == "__main__":
    main()
