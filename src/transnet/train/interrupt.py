"""Ctrl-C: finish the step, save a checkpoint and print how to resume."""

import signal
import threading
from types import FrameType
from typing import Any

from transnet.errors import OperationError


class Stopped(OperationError):
    """Raised when the user has stopped the run. The message gives the command that resumes it."""


class Interrupt:
    """Within the block, SIGINT or SIGTERM sets ``requested``; a second SIGINT raises KeyboardInterrupt.

    This holds even if the process was started with SIGINT ignored, as under nohup, cron or ``&`` in a script. A second
    SIGTERM raises nothing: a scheduler may send it to every process of a study, and each of them forwards it as well.

    Args:
        immediate: raise KeyboardInterrupt at the first signal.
    """

    def __init__(self, *, immediate: bool = False) -> None:
        self.requested, self._immediate = False, immediate
        self._interrupted = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _request(self, number: int, _frame: FrameType | None) -> None:
        if self._immediate:
            raise KeyboardInterrupt
        if number == signal.SIGINT:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True
        self.requested = True
