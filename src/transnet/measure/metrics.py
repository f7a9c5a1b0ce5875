"""Statistics of repeated runs (standard errors, intervals), kept in one place so that all tables agree."""

import math
import statistics
from collections.abc import Sequence


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard error, std(ddof=1)/√n; no error for a single value."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return statistics.fmean(values), error
