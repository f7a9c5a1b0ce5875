"""Training a run. It needs a newer torch than the method, which pyproject.toml gives the minimum for."""

import torch

from transnet.errors import OperationError

_OLDEST = "2.11"

if torch.torch_version.TorchVersion(torch.__version__) < _OLDEST:
    raise OperationError(
        f"training and the commands need torch {_OLDEST} or newer, and {torch.__version__} is installed; "
        "upgrade with: pip install -U torch torchvision. TransNet, fold and invariance_score work without it"
    )
