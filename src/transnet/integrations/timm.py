"""TransNet as a timm `TrainingTask`: for scripts built around ``timm.task``, as timm's own ``train.py`` is.

>>> task = TransNetTask(TransNet(timm.create_model("resnet18"), "r0,r1"), criterion)
>>> task(images, targets)["loss"].backward()
>>> better = task.prune()                            # a plain timm model
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from timm.task import ClassificationTask
from timm.utils.model import get_state_dict, unwrap_model
from torch import Tensor, nn

from transnet.distillation import distillation_loss, student_of
from transnet.inputs import one_of
from transnet.model import TransNet


class TransNetTask(ClassificationTask):  # type: ignore[misc]
    """Train a TransNet where timm's `ClassificationTask` would train a model.

    Validation (``get_eval_model``) sees a plain classifier, checkpoints hold the whole TransNet.

    Args:
        model: the TransNet.
        criterion: timm's or torch's, taken for each head and averaged (Alg. 1); cross-entropy by default. It must
            return one value.
        evaluate: what validation measures: the identity head that `prune` would keep, or all heads.
        distillation: weight of `distillation_loss`, which teaches that head what all say together.
        device: for the task's own tensors, as in timm.
        dtype: likewise.
        verbose: log what is trained.
    """

    def __init__(
        self,
        model: TransNet,
        criterion: nn.Module | Callable[[Tensor, Tensor], Tensor] | None = None,
        *,
        evaluate: Literal["pruned", "full"] = "pruned",
        distillation: float = 0.0,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        verbose: bool = True,
    ) -> None:
        one_of("evaluate", evaluate, ("pruned", "full"))
        if not isinstance(model, TransNet):
            raise TypeError(f"model: {type(model).__name__} was given; wrap it first: TransNet(model, 'r0,r1')")
        if evaluate == "pruned" and "r0" not in model.transforms:
            raise ValueError(
                f"evaluate: {' '.join(model.transforms)} has no r0 to prune to; evaluate='full' would work"
            )
        super().__init__(model, criterion or nn.CrossEntropyLoss(), device=device, dtype=dtype, verbose=verbose)
        self.evaluate, self.distillation = evaluate, distillation
        self.student = student_of(model.transforms, distillation) if distillation else 0

    def forward(self, input: Tensor, target: Tensor) -> dict[str, Tensor]:
        """``loss``: the mean over heads, and what is taught; ``output``: the mean of their logits, (B, K)."""
        logits = self.trainable_module(input)
        loss = torch.stack([self.criterion(head, target) for head in logits.unbind(1)]).mean()
        if self.distillation:
            loss = loss + self.distillation * distillation_loss(logits, self.student)
        return {"loss": loss, "output": logits.mean(1)}

    def compile(  # type: ignore[override]
        self, backend: str = "inductor", mode: str | None = None, **kwargs: Any
    ) -> nn.Module | None:
        """Compile the network; call it before ``prepare_distributed``."""
        compiled: Any = torch.compile(self.trainable_module, backend=backend, mode=mode, **kwargs)
        self.trainable_module = compiled
        return self.get_eval_model()

    def get_eval_model(self, module: nn.Module | None = None, ema: bool = False) -> nn.Module | None:  # type: ignore[override]
        """A classifier with outputs (B, K) that shares its weights with the network in training."""
        module = module or self.get_trainable_module(ema=ema)
        return None if module is None else _Classifier(unwrap_model(module), self.evaluate)

    def get_checkpoint_state(self, ema: bool = False, unwrap_fn: Any = unwrap_model) -> dict[str, Any]:
        """The TransNet's own state dict: ``backbone.*``, ``heads.<i>.*``."""
        module = self.get_trainable_module(ema=ema)
        key = "state_dict_ema" if ema else "state_dict"
        return {} if module is None else {key: get_state_dict(module, unwrap_fn)}

    def load_checkpoint_state(
        self,
        state_dict: dict[str, Any],
        task_state: dict[str, Any] | None = None,
        ema: bool = False,
        strict: bool = True,
    ) -> None:
        """Load what `get_checkpoint_state` gave."""
        module = self.get_trainable_module(ema=ema)
        if module is None:
            raise RuntimeError("the task has no averaged weights to load into; call setup_ema() first")
        unwrap_model(module).load_state_dict(state_dict, strict=strict)

    def prune(
        self, name: str = "r0", *, image_size: int | tuple[int, int] | None = None, ema: bool = False
    ) -> nn.Module:
        """The timm model, trained better: `TransNet.prune` of the network, or of its averaged weights."""
        module = self.get_trainable_module(ema=ema)
        if module is None:
            raise RuntimeError("the task has no averaged weights to prune; call setup_ema() first")
        net: TransNet = unwrap_model(module)
        return net.prune(name, image_size=image_size)


class _Classifier(nn.Module):
    def __init__(self, net: TransNet, evaluate: str) -> None:
        super().__init__()
        self.net, self.heads = net, "r0" if evaluate == "pruned" else None
        self.training = net.training

    def forward(self, x: Tensor) -> Tensor:
        return self.net.predict(x, heads=self.heads)
