"""TransNet: image classifiers with one head per rotation or reflection of the input.

The public names are resolved when first used, so that ``import transnet`` (and ``transnet --help``) does not
import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transnet.distillation import distillation_loss as distillation_loss
    from transnet.early_exit import anytime as anytime
    from transnet.folding.fold import fold as fold
    from transnet.invariance import invariance_penalty as invariance_penalty
    from transnet.invariance import invariance_score as invariance_score
    from transnet.invariance import layer_invariance as layer_invariance
    from transnet.model import TransNet as TransNet
    from transnet.model import heads_loss as heads_loss
    from transnet.runs.folder import load as load

__version__ = "0.1.0"

_HOME = {
    **dict.fromkeys(("TransNet", "heads_loss"), "model"),
    "distillation_loss": "distillation",
    "anytime": "early_exit",
    "fold": "folding.fold",
    **dict.fromkeys(("invariance_penalty", "invariance_score", "layer_invariance"), "invariance"),
    "load": "runs.folder",
}
__all__ = ["__version__", *_HOME]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"transnet.{_HOME[name]}"), name)
    raise AttributeError(f"module 'transnet' has no attribute {name!r}; it has {', '.join(_HOME)}")


def __dir__() -> list[str]:
    return sorted(__all__)
