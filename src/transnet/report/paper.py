"""The paper's own numbers: Tables 2, 3 and 4, accuracy in percent with its standard error over three repetitions."""

from typing import NamedTuple

N = 3  # repetitions behind every figure


class Published(NamedTuple):
    """One cell of the paper's tables."""

    accuracy: float
    error: float


DATA = ("cifar10", "cifar100", "imagenette", "imagewoof", "imagenet200")

_ROWS: dict[str, tuple[tuple[float, float], ...]] = {
    "base": ((95.57, 0.08), (76.56, 0.16), (92.97, 0.16), (87.27, 0.15), (84.39, 0.07)),
    # Table 2: pruned to the identity head.
    "PT2": ((95.99, 0.07), (79.33, 0.15), (93.84, 0.14), (88.09, 0.30), (85.17, 0.10)),
    "PT3": ((95.87, 0.04), (79.08, 0.06), (94.15, 0.16), (87.79, 0.11), (84.97, 0.95)),
    "PT4": ((95.73, 0.05), (77.98, 0.17), (93.94, 0.06), (85.81, 0.79), (84.02, 0.71)),
    # Table 3: all heads.
    "T2": ((96.22, 0.10), (80.35, 0.06), (94.02, 0.13), (88.36, 0.33), (85.47, 0.14)),
    "T3": ((96.33, 0.06), (80.92, 0.08), (94.39, 0.07), (88.79, 0.25), (85.68, 0.20)),
    "T4": ((96.17, 0.01), (79.94, 0.16), (94.67, 0.06), (87.05, 0.75), (85.54, 0.11)),
    # Table 4: the ablation; its base and PT2 are those of Table 2.
    "Alg. only": ((93.85, 0.63), (76.64, 0.69), (92.60, 0.07), (87.64, 0.30), (80.58, 0.08)),
    "Arch. only": ((95.68, 0.05), (76.98, 0.13), (93.49, 0.03), (87.40, 0.74), (84.47, 0.13)),
}


def published(row: str, data: str) -> Published | None:
    """What the paper reports for a row of its tables on a data set; None where it reports nothing."""
    if row not in _ROWS or data not in DATA:
        return None
    return Published(*_ROWS[row][DATA.index(data)])
