"""Copy modules that keep tensors of their last forward, which `copy.deepcopy` alone refuses."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def copy_module(module: M) -> M:
    """Return a deep copy of a module.

    Some models cache a tensor that they computed from their parameters, such as timm's LeViT in evaluation mode. With
    gradients on, that tensor belongs to an autograd graph. Its copy has the same values and belongs to none.
    """
    return copy.deepcopy(module, copies_of_cached(module))


def copies_of_cached(module: nn.Module) -> dict[int, Any]:
    """Return a memo for `copy.deepcopy` with a detached copy of every tensor that it could not copy itself."""
    cached = [tensor for part in module.modules() for tensor in _tensors(vars(part).values()) if not tensor.is_leaf]
    return {id(tensor): tensor.detach().clone() for tensor in cached}


def _tensors(values: Iterable[Any]) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Mapping):
            yield from _tensors(value.values())
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
