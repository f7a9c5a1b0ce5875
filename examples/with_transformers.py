"""TransNet in the Hugging Face Trainer: a forward that returns a loss is all it asks for.

python examples/with_transformers.py --epochs 10
"""

import argparse
import tempfile

import torch
from digits import digits
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from transnet import TransNet, heads_loss
from transnet.backbones import create


class Classifier(nn.Module):
    """What the Trainer trains: with labels it returns Alg. 1's loss, and always the mean of the heads' logits."""

    def __init__(self, net: TransNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """The loss and the logits, by the Trainer's names."""
        heads = self.net.logits(pixel_values)
        loss = {} if labels is None else {"loss": heads_loss(heads, labels)}
        return {**loss, "logits": heads.mean(1)}


def collate(rows: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Rows of a data set as the arguments of `Classifier.forward`."""
    x, y = zip(*rows, strict=True)
    return {"pixel_values": torch.stack(x), "labels": torch.stack(y)}


def main() -> None:
    """Train, prune, measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    train, test = digits()
    net = TransNet(create("resnet8-small", num_classes=10, in_channels=1), ("r0", "r1"))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=options.epochs, per_device_train_batch_size=128, learning_rate=5e-3,
            report_to="none", save_strategy="no", seed=0, disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(Classifier(net), arguments, data_collator=collate, train_dataset=train, eval_dataset=test)
        trainer.train()
        logits = trainer.predict(test).predictions
    y = test.tensors[1]
    print(f"both heads: {(torch.from_numpy(logits).argmax(1) == y).float().mean():.1%}")
    model = net.eval().prune()
    x = test.tensors[0].to(next(model.parameters()).device)
    with torch.no_grad():
        print(f"pruned: {(model(x).argmax(1).cpu() == y).float().mean():.1%}")


if __name__ == "__main__":
    main()
