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


def as_text(value: float, form: str) -> str:
    """Format a number with a true minus sign, for people to read. A number that rounds to zero has no minus."""
    return f"{value:{form.replace('.', 'z.', 1)}}".replace("-", "−")


class Difference(NamedTuple):
    """A difference of means with its 95 % interval; None without an estimate of the spread."""

    mean: float
    low: float | None
    high: float | None
    n: tuple[int, int]

    @property
    def certain(self) -> bool:
        """Whether the difference is significant: its interval excludes zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def __str__(self) -> str:
        """In points, with its interval and n."""
        n = "n = " + " and ".join(map(str, dict.fromkeys(self.n)))
        mean = as_text(self.mean, "+.2f")
        if self.low is None or self.high is None:
            why = ": the runs of each side are equal" if min(self.n) > 1 else ""
            return f"{mean} points, no interval{why} ({n})"
        unsure = "" if self.certain else ", not significant"
        return f"{mean} points, 95 % interval {as_text(self.low, '+.2f')} to {as_text(self.high, '+.2f')}{unsure} ({n})"


def difference(ours: Sequence[float], others: Sequence[float]) -> Difference:
    """Mean of ``ours`` − mean of ``others`` with Welch's 95 % interval.

    There is no interval without two values on each side, or if the values of each side are equal.
    """
    from scipy.stats import ttest_ind  # type: ignore[import-untyped]

    mean = statistics.fmean(ours) - statistics.fmean(others)
    n = len(ours), len(others)
    if min(n) < 2 or (statistics.pvariance(ours) == 0 and statistics.pvariance(others) == 0):
        return Difference(mean, None, None, n)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)  # the values of one side may be equal
        interval = ttest_ind(ours, others, equal_var=False).confidence_interval(0.95)
    return Difference(mean, float(interval.low), float(interval.high), n)
