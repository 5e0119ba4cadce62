"""What py-spy really used, held against its budget: a model of its cost is wrong by as much as the machine is crowded."""

from __future__ import annotations

from collections import deque

LOOK_BACK_NS = 12_000_000_000
BOOKED_LATE_NS = 5_000_000_000
"""A window is paid for when it ends; the longest last so long."""
LOWEST_SHARE = 0.4
_CUT = 0.5
_RAISE = 0.03
_ROOM = 0.97


class Spending:
    """CPU of windows that have ended, and what may be planned with so that they stay within the budget."""

    def __init__(self) -> None:
        self._ended: deque[tuple[int, float]] = deque()
        self._allowed: deque[tuple[int, float]] = deque()
        self._since_ns: int | None = None
        self._share = 1.0

    def add(self, at_ns: int, cpu_s: float) -> None:
        """A window has ended that took so many CPU seconds."""
        if self._since_ns is None:
            # From here on the time counts; what this one used lies before.
            self._since_ns = at_ns
            return
        self._ended.append((at_ns, cpu_s))

    def cores(self, now_ns: int) -> float | None:
        """Cores used over the last twelve seconds, None before so much was seen."""
        if self._since_ns is None or now_ns - self._since_ns < LOOK_BACK_NS:
            return None
        while self._ended and self._ended[0][0] < now_ns - LOOK_BACK_NS:
            self._ended.popleft()
        return sum(cpu_s for _, cpu_s in self._ended) / (LOOK_BACK_NS / 1e9)

    def to_plan(self, now_ns: int, budget_cores: float) -> float:
        """Cores to plan with now: the budget, less by as much as was overspent. To be asked every few seconds."""
        while self._allowed and self._allowed[0][0] < now_ns - LOOK_BACK_NS - BOOKED_LATE_NS:
            self._allowed.popleft()
        used = self.cores(now_ns)
        then = [cores for at_ns, cores in self._allowed if at_ns <= now_ns - BOOKED_LATE_NS]
        if used is not None and then:
            # What is booked now was used under the budget of then.
            allowed = sum(then) / len(then)
            if used > allowed:
                # By half of what is too much each time: what was seen is from before the last cut.
                self._share = max(self._share * (1.0 - min(_CUT * (used / allowed - 1.0), 0.3)), LOWEST_SHARE)
            elif used < _ROOM * allowed:
                self._share = min(self._share + _RAISE, 1.0)
        self._allowed.append((now_ns, budget_cores))
        return budget_cores * self._share
