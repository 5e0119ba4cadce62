"""How much of its budget py-spy may use: all of it where cores are idle, less where the target needs nearly all of them.

A sampler on a core of its own costs the target little. Where it must share one, a pipeline feels it twice: the stage that is
held up, and those that wait for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ppscope.sources.stacks_plan import BUDGET_CORES

IDLE_SHARE = 0.05
"""Of the idle cores, for stack windows."""
LEAST_CORES = 0.04
READ_EVERY_NS = 1_900_000_000
FIRST_READ_NS = 500_000_000
_KEPT = 4


class Room:
    """What the node's idle cores leave of the budgets, for all sources that run py-spy; may be asked from any thread."""

    def __init__(self, read: Callable[[int], float | None]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._read_ns: int | None = None
        self._idle: deque[float] = deque(maxlen=_KEPT)

    def idle_cores(self, now_ns: int) -> float | None:
        """Idle cores over the last eight seconds; None before anything is known."""
        with self._lock:
            every_ns = READ_EVERY_NS if self._idle else FIRST_READ_NS
            if self._read_ns is None or now_ns - self._read_ns >= every_ns:
                self._read_ns = now_ns
                idle = self._read(now_ns)
                if idle is not None:
                    self._idle.append(idle)
            return sum(self._idle) / len(self._idle) if self._idle else None

    def share(self, now_ns: int) -> float:
        """Share of every py-spy budget that may be used now, above 0 and at most 1; 1 while nothing is known."""
        idle = self.idle_cores(now_ns)
        return 1.0 if idle is None else min(max(IDLE_SHARE * idle, LEAST_CORES) / BUDGET_CORES, 1.0)


FREE = Room(lambda _now_ns: None)
"""Where nobody gives way: the whole of every budget."""
