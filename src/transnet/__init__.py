"""TransNet: image classifiers that generalise better at no cost at prediction time.

The public names are resolved when first used, so that ``import transnet`` (and ``transnet --help``) does not
import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "TransNet": "model",
    "heads_loss": "model",
    "load": "train.run",
}
__all__ = ["TransNet", "__version__", "heads_loss", "load"]

if TYPE_CHECKING:
    from transnet.model import TransNet, heads_loss
    from transnet.train.run import load


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"transnet.{_HOME[name]}"), name)
    raise AttributeError(f"module 'transnet' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
