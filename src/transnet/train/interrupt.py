"""Ctrl-C: finish the step, save a checkpoint and print how to resume."""

import signal
import threading
from types import FrameType

from transnet.errors import OperationError


class Stopped(OperationError):
    """Raised when the user has stopped the run. The message gives the command that resumes it."""


class Interrupt:
    """Within the block, SIGINT or SIGTERM sets ``requested``; a second SIGINT raises KeyboardInterrupt.

    A second SIGTERM does not, because a scheduler may send it to every process of a study, and each forwards it. With
    ``immediate``, the first signal raises KeyboardInterrupt. SIGINT counts even if it was ignored, as under nohup.
    """

    def __init__(self, *, immediate: bool = False) -> None:
        self.requested = self._interrupted = False
        self._immediate = immediate
        main = threading.current_thread() is threading.main_thread()
        self._signals = (signal.SIGINT, signal.SIGTERM) if main else ()

    def __enter__(self) -> "Interrupt":
        self._before = [signal.signal(number, self._request) for number in self._signals]
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in zip(self._signals, self._before, strict=True):
            signal.signal(number, handler)

    def _request(self, number: int, _frame: FrameType | None) -> None:
        if self._immediate or (number == signal.SIGINT and self._interrupted):
            raise KeyboardInterrupt
        self._interrupted = self._interrupted or number == signal.SIGINT
        self.requested = True
