"""One-cycle training: most of the paper's accuracy in a fraction of its time.

transnet train cifar100 --transforms r0,r1 --recipe fast --out runs/t2
"""

from typing import Any

SETTINGS: dict[str, Any] = {}

_CIFAR: dict[str, Any] = {"batch_size": 512, "lr": 0.4, "weight_decay": 1e-3, "label_smoothing": 0.1}
PER_DATA: dict[str, dict[str, Any]] = {"cifar10": _CIFAR, "cifar100": _CIFAR, "digits": {"epochs": 30}}
