"""Host time that passes: where a real stage would launch kernels or compute, this sleeps, unless a story is about a core that burns."""

from __future__ import annotations

import time

MIN_SLEEP_NS = 1_000_000


def spend(milliseconds: float) -> None:
    """Let host time pass."""
    if milliseconds > 0:
        time.sleep(milliseconds / 1e3)


def burn(milliseconds: float) -> None:
    """Use CPU time."""
    end_ns = time.thread_time_ns() + int(milliseconds * 1e6)
    while time.thread_time_ns() < end_ns:
        sum(range(200))


def spend_until(deadline_ns: int) -> None:
    """Sleep until a monotonic time, but only when that is at least a millisecond ahead: short waits merge into the next one."""
    left = deadline_ns - time.monotonic_ns()
    if left >= MIN_SLEEP_NS:
        time.sleep(left / 1e9)
