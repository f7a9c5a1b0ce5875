"""Batch norm per transform inside one forward pass.

Alg. 1 of the paper runs the network once per transform. A batch-norm layer in training mode then takes m sets of
statistics and updates the running ones m times. The concatenated forward of `TransNet` is faster, but it would mix the
copies in one set. The layers made here therefore split the concatenated batch (all of t1's copies, then all of t2's),
with common running statistics. They are the model's own layers with another class, so state-dict keys stay the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from transnet.errors import ModelError


class _PerTransform(_BatchNorm):
    """Mixin for a batch-norm class: if it uses the batch's statistics, its forward runs on each transform's part."""

    copies: int

    def forward(self, input: Tensor) -> Tensor:
        if self.copies == 1 or not (self.training or self.running_mean is None):
            return super().forward(input)
        if input.shape[0] % self.copies:
            problem = f"a leading dimension of {input.shape[0]} does not split into {self.copies} transforms"
            raise ModelError(f"batch norm per transform: {problem}; this model needs bn='joint'")
        return torch.cat([super(_PerTransform, self).forward(part) for part in input.chunk(self.copies)])

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class exists only at run time, so pickle and deepcopy recreate it from its base class.
        return _blank, (type(self).__bases__[1],), self.__dict__


@cache
def _per_transform(base: type[_BatchNorm]) -> type[_PerTransform]:
    return type(f"PerTransform{base.__name__}", (_PerTransform, base), {})


def _blank(base: type[_BatchNorm]) -> _PerTransform:
    cls = _per_transform(base)  # type: ignore[arg-type]
    return cls.__new__(cls)


def split_batch_norm(model: nn.Module, copies: int) -> None:
    """Make every batch-norm layer of ``model`` normalise each transform's part of a batch by itself, in place.

    Call it after `torch.nn.SyncBatchNorm.convert_sync_batchnorm`, which would replace these layers: see `check_split`.
    """
    for module in model.modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, _PerTransform):
            module.__class__ = _per_transform(type(module))  # type: ignore[arg-type]
        if isinstance(module, _PerTransform):
            module.copies = copies


@contextmanager
def copies_in_batch(model: nn.Module, copies: int) -> Iterator[None]:
    """Within the block, split batches into ``copies`` parts: for a forward with only some of the transforms."""
    layers = [module for module in model.modules() if isinstance(module, _PerTransform)]
    before = [layer.copies for layer in layers]
    try:
        for layer in layers:
            layer.copies = copies
        yield
    finally:
        for layer, number in zip(layers, before):
            layer.copies = number


def check_split(model: nn.Module) -> None:
    """Raise if a layer of ``model`` has been replaced since `split_batch_norm`, so that it would mix the transforms."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, _PerTransform):
            raise ModelError(
                f"bn='separate': layer {name!r} was replaced by a {type(module).__name__} that keeps joint statistics; "
                "use bn='joint', or convert the layers before wrapping the model, such as "
                "TransNet(nn.SyncBatchNorm.convert_sync_batchnorm(model), bn='separate'), and do not set Lightning's "
                "sync_batchnorm=True"
            )


def restore_batch_norm(model: nn.Module) -> None:
    """Undo `split_batch_norm` in place: restore the class of every layer."""
    for module in model.modules():
        if isinstance(module, _PerTransform):
            del module.copies
            module.__class__ = type(module).__bases__[1]
