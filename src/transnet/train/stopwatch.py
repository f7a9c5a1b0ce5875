"""Where a run's time goes, over all processes that went on with it."""

import time


class Took:
    """Seconds of a run, part by part and in all.

    Attributes:
        parts: ``prepare``, ``compile``, ``train`` and ``evaluate``; the rest went to saving and the like.
    """

    def __init__(self) -> None:
        self.parts = dict.fromkeys(("prepare", "compile", "train", "evaluate"), 0.0)
        self._before = 0.0
        self._begun = self._last = time.perf_counter()

    @property
    def all(self) -> float:
        """Of this process, and of those before it up to their last checkpoint."""
        return self._before + time.perf_counter() - self._begun

    def add(self, part: str, seconds: float) -> None:
        """Count them to a part."""
        self.parts[part] += seconds

    def lap(self, part: str) -> None:
        """Count what passed since the last call, or since the beginning."""
        now = time.perf_counter()
        self.add(part, now - self._last)
        self._last = now

    def so_far(self) -> dict[str, float]:
        """For a checkpoint."""
        return {**self.parts, "all": self.all}

    def go_on(self, before: dict[str, float]) -> None:
        """Take up what `so_far` said."""
        self._before = before.get("all", 0.0)
        for part in self.parts:
            self.parts[part] += before.get(part, 0.0)
