"""One-cycle training, in a fifth of the paper's epochs.

transnet train cifar100 --transforms r0,r1 --recipe fast --out runs/t2

The settings were chosen on 45,000/5,000 training images of CIFAR-100. Of five candidates, each tried with the baseline
and T2 with one seed and half the epochs, they gave the best baseline (results/tune_fast.json; benchmarks/tune_fast.toml
repeats it). CIFAR-10 uses the same settings. The accuracy on the test set is in results/cifar100.
"""

SETTINGS: dict[str, object] = {}

_CIFAR: dict[str, object] = {"batch_size": 512, "lr": 0.4, "weight_decay": 1e-3, "label_smoothing": 0.1}
PER_DATA: dict[str, dict[str, object]] = {"cifar": _CIFAR, "digits": {"epochs": 30}}
