"""Statistics of repeated runs (standard errors, intervals), kept in one place so that all tables agree."""

import math
import statistics
import warnings
from collections.abc import Sequence
from typing import NamedTuple


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard error, std(ddof=1)/√n; no error for a single value."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return statistics.fmean(values), error


class Difference(NamedTuple):
    """A difference of means with its 95 % interval; None where there is no estimate of the spread."""

    mean: float
    low: float | None
    high: float | None
    n: tuple[int, int]

    @property
    def certain(self) -> bool:
        """Whether the interval excludes zero: without one nothing is claimed."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def __str__(self) -> str:
        """In points, for a sentence; a lead inside the error is called that."""
        n = "n = " + " and ".join(map(str, dict.fromkeys(self.n)))
        if self.low is None:
            return f"{self.mean:+.2f} points, no interval ({n})"
        verdict = "outside the error" if self.certain else "inside the error"
        return f"{self.mean:+.2f} points, 95 % interval {self.low:+.2f} to {self.high:+.2f}, {verdict} ({n})"


def difference(ours: Sequence[float], others: Sequence[float]) -> Difference:
    """Mean of ``ours`` − mean of ``others`` with Welch's 95 % interval.

    Without two values on each side, or where no value differs from another, there is no interval.
    """
    from scipy.stats import ttest_ind  # type: ignore[import-untyped]

    mean = statistics.fmean(ours) - statistics.fmean(others)
    n = len(ours), len(others)
    if min(n) < 2 or (statistics.pvariance(ours) == 0 and statistics.pvariance(others) == 0):
        return Difference(mean, None, None, n)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)  # one side may be all alike
        interval = ttest_ind(ours, others, equal_var=False).confidence_interval(0.95)
    return Difference(mean, float(interval.low), float(interval.high), n)
