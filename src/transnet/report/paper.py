"""The names of the paper's classifiers, and its own numbers (Tables 2, 3 and 4)."""

from typing import NamedTuple

BY_HEADS = ("base", "t2", "t3", "t4")
LONGER = ("base-x2", "base-x3", "base-x4")  # baselines at equal training compute

# What tables call a kind of run: its pruned classifier, and the mean of all its heads.
NAMES = {
    "base": ("baseline", "baseline"),
    **{f"t{m}": (f"PT{m}", f"T{m}") for m in (2, 3, 4)},
    "alg": ("Alg. only", "Alg. only"),
    "arch": ("Arch. only", "Arch. only"),
    **{f"base-x{m}": (f"baseline, {m}× epochs",) * 2 for m in (2, 3, 4)},
    "t2-taught": ("PT2 self-distilled", "T2 self-distilled"),
}
DATA = ("cifar10", "cifar100", "imagenette", "imagewoof", "imagenet200")

_ROWS: dict[str, tuple[tuple[float, float], ...]] = {
    "baseline": ((95.57, 0.08), (76.56, 0.16), (92.97, 0.16), (87.27, 0.15), (84.39, 0.07)),
    # Table 2: pruned to the identity head.
    "PT2": ((95.99, 0.07), (79.33, 0.15), (93.84, 0.14), (88.09, 0.30), (85.17, 0.10)),
    "PT3": ((95.87, 0.04), (79.08, 0.06), (94.15, 0.16), (87.79, 0.11), (84.97, 0.95)),
    "PT4": ((95.73, 0.05), (77.98, 0.17), (93.94, 0.06), (85.81, 0.79), (84.02, 0.71)),
    # Table 3: all heads.
    "T2": ((96.22, 0.10), (80.35, 0.06), (94.02, 0.13), (88.36, 0.33), (85.47, 0.14)),
    "T3": ((96.33, 0.06), (80.92, 0.08), (94.39, 0.07), (88.79, 0.25), (85.68, 0.20)),
    "T4": ((96.17, 0.01), (79.94, 0.16), (94.67, 0.06), (87.05, 0.75), (85.54, 0.11)),
    # Table 4: the ablation; its baseline and PT2 are those of Table 2.
    "Alg. only": ((93.85, 0.63), (76.64, 0.69), (92.60, 0.07), (87.64, 0.30), (80.58, 0.08)),
    "Arch. only": ((95.68, 0.05), (76.98, 0.13), (93.49, 0.03), (87.40, 0.74), (84.47, 0.13)),
}


class Published(NamedTuple):
    """One cell of the paper's tables: accuracy in percent, and its standard error over three repetitions."""

    accuracy: float
    error: float


def published(row: str, data: str) -> Published | None:
    """What the paper reports for a row of its tables on a data set, if it does."""
    return Published(*_ROWS[row][DATA.index(data)]) if row in _ROWS and data in DATA else None


def name_of(kind: str, part: str, heads: int = 1) -> str:
    """What a table calls a kind's ``pruned`` or ``full`` classifier; variants of a user's own keep their name."""
    if kind in NAMES:
        return NAMES[kind][part == "full"]
    if heads == 1:
        return kind
    return f"{kind}, {'all heads' if part == 'full' else 'pruned'}"


def title_of(kind: str) -> str:
    """What the list of runs calls a kind: ``T2 / PT2``."""
    pruned, full = NAMES.get(kind, (kind, kind))
    return full if full == pruned else f"{full} / {pruned}"
