"""Ctrl-C: finish the step, save, and say how to go on."""

import signal
import threading
from types import FrameType
from typing import Any

from transnet.errors import OperationError


class Stopped(OperationError):
    """Raised after the user stopped the run. The message says how to continue."""


class Interrupt:
    """While the block lasts, SIGINT or SIGTERM is a wish to stop (``asked``); a second SIGINT stops at once.

    This holds even if the process was started with SIGINT ignored, as under nohup, cron or ``&`` in a script. SIGTERM
    never stops at once: a scheduler may send it to every process of a study, each of which passes its wish on as well.

    Args:
        at_once: both stop at once, with KeyboardInterrupt.
    """

    def __init__(self, *, at_once: bool = False) -> None:
        self.asked, self._at_once = False, at_once
        self._pressed = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        if self._at_once:
            raise KeyboardInterrupt
        if number == signal.SIGINT:
            if self._pressed:
                raise KeyboardInterrupt
            self._pressed = True
        self.asked = True
