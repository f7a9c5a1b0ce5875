"""Train with TransNet in the Hugging Face Trainer: python examples/with_transformers.py --epochs 10

The Trainer needs a dictionary from the model. From a plain tensor it drops the first image of every batch, silently.
"""

import argparse
import tempfile

import torch
import torch.nn.functional as F
from digits import digits
from torch import Tensor, nn
from transformers import EvalPrediction, Trainer, TrainingArguments, set_seed

from transnet import TransNet, heads_loss
from transnet.backbones import create


class ForTrainer(nn.Module):
    """Return the loss and the logits of a classifier under the names that the Trainer expects."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Use Alg. 1's loss for training, and the plain cross-entropy for evaluation."""
        logits = self.model(pixel_values)
        criterion = heads_loss if self.training else F.cross_entropy
        return {"loss": criterion(logits, labels), "logits": logits}


def collate(rows: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Make the arguments of `ForTrainer.forward` from rows of the dataset."""
    x, y = zip(*rows, strict=True)
    return {"pixel_values": torch.stack(x), "labels": torch.stack(y)}


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """Compute the accuracy, as for any model."""
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main() -> None:
    """Train, prune, measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    set_seed(0)
    train, test = digits()
    net = TransNet(create("resnet8-small", num_classes=10, in_channels=1), ("r0", "r1"))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=options.epochs, per_device_train_batch_size=128, learning_rate=5e-3,
            report_to="none", save_strategy="no", seed=0, disable_tqdm=True,
        )  # fmt: skip
        settings = {"args": arguments, "data_collator": collate, "eval_dataset": test, "compute_metrics": accuracy}
        trainer = Trainer(ForTrainer(net), train_dataset=train, **settings)
        trainer.train()
        both = trainer.evaluate()["eval_accuracy"]
        pruned = Trainer(ForTrainer(net.prune()), **settings).evaluate()["eval_accuracy"]
    print(f"both heads, two passes per image: {both:.1%}")
    print(f"pruned, one pass per image: {pruned:.1%}")


if __name__ == "__main__":
    main()
