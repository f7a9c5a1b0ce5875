"""TransNet in Lightning: a module that trains it, and a callback that prunes it when training ends.

>>> prune = PruneAtEnd("better.safetensors")
>>> lightning.Trainer(max_epochs=30, callbacks=[prune]).fit(TransNetModule(net, optimizer), loader)
>>> better = prune.model
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

try:
    import lightning
except ImportError as error:
    raise ImportError("transnet.integrations.lightning needs Lightning: pip install 'lightning>=2.6.4'") from error

from transnet.distillation import distillation_loss, student_of
from transnet.model import TransNet, heads_loss
from transnet.runs.checkpoint import write_tensors

Optimizers = Callable[[Iterable[nn.Parameter]], Any]


class TransNetModule(lightning.LightningModule):
    """Train a TransNet on batches of (images, targets); subclass it, or take its three steps into your own module.

    Logs ``train_loss``, and on validation ``val_loss`` and ``val_accuracy`` of all heads, with those of the identity
    head (``val_accuracy_pruned``) where there is one: that is the model `PruneAtEnd` keeps.

    Args:
        net: the network.
        optimizer: makes what ``configure_optimizers`` returns from the parameters; SGD by default.
        label_smoothing: as in `torch.nn.functional.cross_entropy`.
        distillation: weight of `distillation_loss`, which teaches the identity head what all say together.
    """

    def __init__(
        self,
        net: TransNet,
        optimizer: Optimizers | None = None,
        *,
        label_smoothing: float = 0.0,
        distillation: float = 0.0,
    ) -> None:
        super().__init__()
        self.net = net
        self.optimizer = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
        self.label_smoothing, self.distillation = label_smoothing, distillation
        self.student = student_of(net.transforms, distillation) if distillation else 0

    def forward(self, x: Tensor) -> Tensor:
        """The mean of the heads' logits, (B, K)."""
        return self.net.predict(x)

    def training_step(self, batch: Any, index: int) -> Tensor:
        """Alg. 1 on one batch, and what is taught."""
        x, y = batch
        logits = self.net.logits(x)
        loss = heads_loss(logits, y, label_smoothing=self.label_smoothing)
        if self.distillation:
            loss = loss + self.distillation * distillation_loss(logits, self.student)
        self.log("train_loss", loss, prog_bar=True, batch_size=len(x))
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        """Loss and accuracy, full and pruned."""
        x, y = batch
        logits = self.net.logits(x)
        # Over all processes: a callback that keeps the best checkpoint must not go by one process's share.
        self.log("val_loss", heads_loss(logits, y), batch_size=len(x), sync_dist=True)
        self.log("val_accuracy", _accuracy(logits.mean(1), y), prog_bar=True, batch_size=len(x), sync_dist=True)
        if "r0" in self.net.transforms:
            head = logits[:, self.net.transforms.index("r0")]
            self.log("val_accuracy_pruned", _accuracy(head, y), prog_bar=True, batch_size=len(x), sync_dist=True)

    def configure_optimizers(self) -> Any:
        """What ``optimizer`` makes."""
        return self.optimizer(self.net.parameters())


class PruneAtEnd(lightning.Callback):
    """Prune the network when training ends; the plain classifier is then ``callback.model``, on the CPU.

    It prunes the first TransNet it finds in the LightningModule, so it also works with a module of your own.

    Args:
        path: where to write the classifier's weights as safetensors, under the model's own names.
        head: the head to keep.
        image_size: needed for any other than r0.
    """

    def __init__(self, path: str | Path | None = None, *, head: str = "r0", image_size: int | None = None) -> None:
        self.path, self.head, self.image_size = Path(path) if path else None, head, image_size
        self.model: nn.Module | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """A network that cannot be pruned so is found out before it trains, not after."""
        _find(pl_module).prune(self.head, image_size=self.image_size)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Prune and write."""
        self.model = _find(pl_module).prune(self.head, image_size=self.image_size).cpu().eval()
        if self.path and trainer.is_global_zero:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(self.path, self.model.state_dict())


def _find(module: nn.Module) -> TransNet:
    for part in module.modules():
        if isinstance(part, TransNet):
            return part
    raise ValueError(f"PruneAtEnd: {type(module).__name__} holds no TransNet; assign one to an attribute of it")


def _accuracy(logits: Tensor, y: Tensor) -> Tensor:
    target = y if y.ndim == 1 else y.argmax(-1)
    return (logits.argmax(-1) == target).float().mean()
