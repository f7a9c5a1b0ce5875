"""How long the parts of a run take."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Measure the parts of a run and its total, across all processes that continued it.

    Attributes:
        parts: seconds in ``prepare``, ``compile``, ``train`` and ``evaluate``. The rest of the total is spent on
            checkpoints and the like.
    """

    def __init__(self) -> None:
        self.parts = dict.fromkeys(("prepare", "compile", "train", "evaluate"), 0.0)
        self._earlier = 0.0
        self._started = self._last_lap = time.perf_counter()

    @property
    def total(self) -> float:
        """Seconds spent in this process, plus those of earlier processes up to their last checkpoint."""
        return self._earlier + time.perf_counter() - self._started

    def add(self, part: str, seconds: float) -> None:
        """Add seconds to a part."""
        self.parts[part] += seconds

    def lap(self, part: str) -> None:
        """Add the time since the last lap, or since the start, to a part."""
        now = time.perf_counter()
        self.add(part, now - self._last_lap)
        self._last_lap = now

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Add the time that the block takes to a part."""
        start = time.perf_counter()
        yield
        self.add(part, time.perf_counter() - start)

    def state_dict(self) -> dict[str, float]:
        """Seconds so far, for a checkpoint."""
        return {**self.parts, "total": self.total}

    def load_state_dict(self, seconds: dict[str, float]) -> None:
        """Add the seconds of earlier processes."""
        self._earlier = seconds["total"]
        for part in self.parts:
            self.parts[part] += seconds[part]
