"""Host time that passes without burning a core: where a real stage would launch kernels or compute, this sleeps."""

from __future__ import annotations

import time

MIN_SLEEP_NS = 1_000_000


def spend(milliseconds: float) -> None:
    """Let host time pass."""
    if milliseconds > 0:
        time.sleep(milliseconds / 1e3)


def spend_until(deadline_ns: int) -> None:
    """Sleep until a monotonic time, but only when that is at least a millisecond ahead: short waits merge into the next one."""
    left = deadline_ns - time.monotonic_ns()
    if left >= MIN_SLEEP_NS:
        time.sleep(left / 1e9)
