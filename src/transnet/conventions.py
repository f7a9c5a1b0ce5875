"""The names that timm's training code looks for in a model, for a network whose model is called ``backbone``.

With them ``timm.optim.create_optimizer_v2(net, layer_decay=0.7)`` treats a `TransNet` like the model inside it, and the
heads as the last group.
"""

import re
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor, nn

from transnet.errors import ModelError
from transnet.head import copy_module

_PREFIX = "backbone."


class TimmConventions:
    """Mixin that forwards timm's conventions to ``self.backbone``. Attributes that the backbone lacks are absent."""

    backbone: nn.Module
    heads: nn.ModuleList
    _classifiers: tuple[tuple[str, ...], ...]

    set_grad_checkpointing = property(attrgetter("backbone.set_grad_checkpointing"))
    num_features = property(attrgetter("backbone.num_features"))
    forward_features = property(attrgetter("backbone.forward_features"), doc="Takes the untransformed images.")

    @property
    def num_classes(self) -> int:
        """The number of classes, which is the output size of one head."""
        sizes = [getattr(layer, "out_features", getattr(layer, "out_channels", 0)) for layer in self.heads[0].modules()]
        return [size for size in sizes if size][-1]

    @property
    def group_matcher(self) -> Callable[..., Any]:
        """The backbone's groups of parameters, for layer decay, under this network's names."""
        matcher = cast(Callable[..., Any], self.backbone.group_matcher)
        return lambda *args, **kw: _prefixed(matcher(*args, **kw))

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that weight decay should leave out; empty if the backbone names none."""
        names = getattr(self.backbone, "no_weight_decay", set)
        return {_PREFIX + name for name in names()}

    @property
    def pretrained_cfg(self) -> Mapping[str, Any]:
        """The backbone's, with the heads as classifier: timm's layer decay reads it if there is no group matcher."""
        return {**cast(Mapping[str, Any], self.backbone.pretrained_cfg), "classifier": "heads"}

    @torch.no_grad()
    def load_backbone(self, state_dict: Mapping[str, Tensor]) -> None:
        """Load the state dict of a plain model, with or without its head; the network's own heads stay as they are.

        If it does not fit, a `ModelError` is raised and nothing is loaded.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"state_dict: {type(state_dict).__name__} was given; give torch.load(PATH)")
        heads = tuple(f"{path}." for paths in self._classifiers for path in paths)
        given = {key: value for key, value in state_dict.items() if not key.startswith(heads)}
        try:
            copy_module(self.backbone).load_state_dict(given)  # a load that fails may change some of the parameters
        except RuntimeError as error:
            advice = "give the plain model's, and load a TransNet's with load_state_dict"
            raise ModelError(f"it does not fit: {error!s:.500}; {advice}", field="state_dict") from None
        self.backbone.load_state_dict(given)


def _prefixed(groups: Any) -> Any:
    """Rewrite a group matcher of timm, a function or regular expressions per group, to ``backbone.`` names."""
    if callable(groups):
        # Unmatched parameters, such as the heads, belong to the last group.
        return lambda name: groups(name.removeprefix(_PREFIX)) if name.startswith(_PREFIX) else float("inf")
    if isinstance(groups, str):
        # timm uses `re.match`, so each alternative starts at the beginning of the name, with or without a caret.
        alternatives = re.sub(r"(?<!\[)\^", "", groups)
        return rf"^backbone\.(?:{alternatives})"
    if isinstance(groups, Mapping):
        return {name: _prefixed(group) for name, group in groups.items()}
    return groups if groups is None else [(_prefixed(pattern), suffix) for pattern, suffix in groups]
