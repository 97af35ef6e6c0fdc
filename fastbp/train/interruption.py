"""Stopping cleanly: the first signal asks, the second insists."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from fastbp.base.errors import Stopped

_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class Interruption:
    """Remembers the first SIGINT or SIGTERM; `poll` raises Stopped after it.

    A second one raises KeyboardInterrupt at once, wherever the program is, with the exit code as its argument.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt(128 + number)
        self.signal = number

    def poll(self) -> None:
        """Raises Stopped, with exit code 130 or 143, if a signal came."""
        if self.signal is not None:
            raise Stopped(f"stopped by {_NAMES[signal.Signals(self.signal)]}", 128 + self.signal)


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Signals are remembered within; the handlers from before come back behind. Nothing outside the main thread."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {number: signal.signal(number, interruption.handle) for number in _NAMES}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
