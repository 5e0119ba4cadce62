"""What ppscope itself costs on this node, in cores."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from ppscope.records import Cost
from ppscope.sources.proc_stat import cpu_seconds


class CostMeter:
    """CPU used since the last reading, by this process, by the tools it runs, and by the one that started it.

    Tools that ended between two readings count through this process's own sum of reaped children.
    """

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._own = _own_s()
        self._reaped = _reaped_s()
        self._running: dict[int, float] = {}
        self._view = (os.getppid(), cpu_seconds(os.getppid()))

    def read(
        self, children: Iterable[int], stack_rate_hz: float | None = None, idle_cores: float | None = None
    ) -> Cost:
        """One Cost record for the time since the last call."""
        now, own, reaped = time.monotonic(), _own_s(), _reaped_s()
        running = {pid: used for pid in children if (used := cpu_seconds(pid)) is not None}
        seconds = max(now - self._at, 1e-6)
        total_before = self._reaped + sum(self._running.values())
        total = reaped + sum(running.values())
        view = (os.getppid(), cpu_seconds(os.getppid()))
        viewed = view[1] - self._view[1] if view[0] == self._view[0] and view[1] and self._view[1] else None
        cost = Cost(
            at_ns=time.monotonic_ns(),
            own_cores=round((own - self._own) / seconds, 4),
            children_cores=round(max(total - total_before, 0.0) / seconds, 4),
            stack_rate_hz=stack_rate_hz,
            idle_cores=idle_cores,
            view_cores=None if viewed is None else round(viewed / seconds, 4),
        )
        self._view = view
        self._at, self._own, self._reaped, self._running = now, own, reaped, running
        return cost


def _own_s() -> float:
    times = os.times()
    return times.user + times.system


def _reaped_s() -> float:
    times = os.times()
    return times.children_user + times.children_system
