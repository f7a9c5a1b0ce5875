"""One-cycle training, in a fifth of the paper's epochs.

transnet train cifar100 --transforms r0,r1 --recipe fast --out runs/t2

The settings were chosen on 45,000/5,000 training images of CIFAR-100: of five candidates, each tried with base and T2,
one seed and half the epochs, the one with the best base (results/tune_fast.json, by benchmarks/tune_fast.py). CIFAR-10
takes the same. What the whole recipe reaches on the test set stands in results/cifar100.
"""

from typing import Any

SETTINGS: dict[str, Any] = {}

_CIFAR: dict[str, Any] = {"batch_size": 512, "lr": 0.4, "weight_decay": 1e-3, "label_smoothing": 0.1}
PER_DATA: dict[str, dict[str, Any]] = {"cifar": _CIFAR, "digits": {"epochs": 30}}
