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
    """A number in that format with a true minus sign, to be read; a file of numbers keeps the hyphen.

    What rounds to zero has no minus, which would read as a loss.
    """
    return f"{value:{form.replace('.', 'z.', 1)}}".replace("-", "−")


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

    @property
    def all_alike(self) -> bool:
        """Whether there is no interval although both sides have several values: none differs from another."""
        return self.low is None and min(self.n) > 1

    def __str__(self) -> str:
        """In points, for a sentence that says whether it is shown."""
        n = "n = " + " and ".join(map(str, dict.fromkeys(self.n)))
        mean = as_text(self.mean, "+.2f")
        if self.low is None or self.high is None:
            why = ": the runs of each side are all alike" if self.all_alike else ""
            return f"{mean} points, no interval{why} ({n})"
        unsure = "" if self.certain else ", no difference shown"
        low, high = as_text(self.low, "+.2f"), as_text(self.high, "+.2f")
        return f"{mean} points, 95 % interval {low} to {high}{unsure} ({n})"


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
