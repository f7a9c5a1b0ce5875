"""Train with TransNet in Lightning; only the training step knows it: python examples/with_lightning.py --epochs 10

It trains on scikit-learn's digits and takes seconds on a CPU.
"""

import argparse

import lightning
import torch
from digits import digits
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy

from transnet import TransNet, heads_loss
from transnet.backbones import create


class Classifier(lightning.LightningModule):
    """Train a TransNet; validate and test it, or any other classifier."""

    def __init__(self, model: nn.Module, classes: int = 10) -> None:
        super().__init__()
        self.model = model
        self.val_accuracy = MulticlassAccuracy(classes, average="micro")
        self.test_accuracy = MulticlassAccuracy(classes, average="micro")

    def forward(self, x: Tensor) -> Tensor:
        """Return the model's output."""
        return self.model(x)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """Alg. 1 on one batch."""
        x, y = batch
        loss = heads_loss(self(x), y)  # in training mode, self(x) holds the logits of every head
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        """Log the accuracy."""
        x, y = batch
        self.val_accuracy(self(x), y)
        self.log("val_accuracy", self.val_accuracy)

    def test_step(self, batch: list[Tensor], index: int) -> None:
        """Log the accuracy."""
        x, y = batch
        self.test_accuracy(self(x), y)
        self.log("test_accuracy", self.test_accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Use SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main() -> None:
    """Train, prune, measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    lightning.seed_everything(0)
    train, test = digits()
    train_loader, test_loader = DataLoader(train, batch_size=128, shuffle=True), DataLoader(test, batch_size=256)
    net = TransNet(create("resnet8-small", num_classes=10, in_channels=1), ("r0", "r1"))
    trainer = lightning.Trainer(
        max_epochs=options.epochs, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Classifier(net), train_loader, test_loader)
    both = trainer.test(Classifier(net), test_loader, verbose=False)[0]["test_accuracy"]
    pruned = trainer.test(Classifier(net.prune()), test_loader, verbose=False)[0]["test_accuracy"]
    print(f"both heads, two passes per image: {both:.1%}")
    print(f"pruned, one pass per image: {pruned:.1%}")


if __name__ == "__main__":
    main()
