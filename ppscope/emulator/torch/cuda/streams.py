"""An event that is done when the emulated GPU's clock says so."""

from __future__ import annotations

import time


class Event:
    """A point in a stream's time (ns, CLOCK_MONOTONIC)."""

    def __init__(self) -> None:
        self.done_ns = 0

    def record(self, done_ns: int) -> None:
        """Set when the work before the event will be finished."""
        self.done_ns = done_ns

    def synchronize(self) -> None:
        """Block until the work before the event is finished."""
        left = self.done_ns - time.monotonic_ns()
        if left > 0:
            time.sleep(left / 1e9)
