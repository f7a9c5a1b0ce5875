"""TransNet: image classifiers with one head per rotation or reflection of the input.

The public names are resolved when first used, so that ``import transnet`` (and ``transnet --help``) does not
import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "TransNet": "model",
    "heads_loss": "model",
    "distillation_loss": "distillation",
    "fold": "folding.fold",
    "invariance_score": "invariance",
    "layer_invariance": "invariance",
    "invariance_penalty": "invariance",
    "load": "runs.folder",
    "anytime": "early_exit",
}
__all__ = [
    "TransNet",
    "__version__",
    "anytime",
    "distillation_loss",
    "fold",
    "heads_loss",
    "invariance_penalty",
    "invariance_score",
    "layer_invariance",
    "load",
]

if TYPE_CHECKING:
    from transnet.distillation import distillation_loss
    from transnet.early_exit import anytime
    from transnet.folding.fold import fold
    from transnet.invariance import invariance_penalty, invariance_score, layer_invariance
    from transnet.model import TransNet, heads_loss
    from transnet.runs.folder import load


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"transnet.{_HOME[name]}"), name)
    raise AttributeError(f"module 'transnet' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
