"""Forwards on the GPU's own clock: two CUDA events around each, read in later turns without waiting, placed on the host's clock.

What lies between the events is the forward on its stream, gaps between its kernels included: where launching is slower than
computing, that is the time of launching.

An event cannot have happened before it was recorded, nor after it was first seen done: each gives a bound on the difference of the
two clocks. The highest lower bound is the estimate – it is met whenever the GPU had nothing else to do – and the distance to the
lowest upper bound is the error that is told. Both start afresh with a new anchor, since the clocks drift and CUDA gives float milliseconds.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

Facts = tuple[int, int, int, int, int, int]
_AHEAD = 64
_ANCHOR_NS = 10_000_000_000


class GpuTimer:
    """Times forwards with `make_event(enable_timing=True)`; hands over (start ns, end ns, facts) by `emit`."""

    def __init__(
        self,
        make_event: Callable[..., Any],
        emit: Callable[[int, int, Facts], None],
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._make, self._emit, self._now = make_event, emit, now
        self._spare: list[Any] = []
        self._open: deque[tuple[Any, Any, int, int, Facts]] = deque()
        self._anchor: Any = None
        self._anchored_ns = 0
        self._low: float | None = None
        self._high: float | None = None
        self.skipped = 0
        """Forwards that were not timed because too many were on their way."""

    @classmethod
    def if_possible(cls, emit: Callable[[int, int, Facts], None]) -> tuple[GpuTimer | None, str]:
        """A timer on this process's torch, or why there is none."""
        torch = sys.modules.get("torch")
        try:
            if torch is None or not torch.cuda.is_available():
                return None, "torch sees no CUDA device"
            return cls(torch.cuda.Event, emit), ""
        except Exception as error:  # noqa: BLE001  the server goes on without
            return None, f"{type(error).__name__}: {error}"[:200]

    @property
    def error_ns(self) -> int:
        """How far off the placement on the host's clock may be, -1 while that is not known."""
        return -1 if self._low is None or self._high is None else max(int(self._high - self._low), 0)

    def _event(self) -> Any:
        return self._spare.pop() if self._spare else self._make(enable_timing=True)

    def before(self) -> tuple[Any, int] | None:
        """Record the first event on the current stream; None when too many forwards are on their way."""
        if len(self._open) >= _AHEAD:
            self.skipped += 1
            return None
        event = self._event()
        at = self._now()
        event.record()
        return event, at

    def again(self, ticket: tuple[Any, int]) -> tuple[Any, int]:
        """Record the first event anew: what has been waited for since is not the forward's."""
        at = self._now()
        ticket[0].record()
        return ticket[0], at

    def after(self, ticket: tuple[Any, int], facts: Facts) -> None:
        """Record the second one."""
        event = self._event()
        at = self._now()
        event.record()
        self._open.append((ticket[0], event, ticket[1], at, facts))

    def reset(self) -> None:
        """Forget what nobody has read for long: an event of then is no anchor for now."""
        for first, last, *_ in self._open:
            self._spare += [first, last]
        self._open.clear()
        if self._anchor is not None:
            self._spare.append(self._anchor)
        self._anchor = self._low = self._high = None

    def poll(self) -> None:
        """Hand over the forwards that are done by now."""
        while self._open and self._open[0][1].query():
            first, last, first_ns, last_ns, facts = self._open.popleft()
            seen_ns = self._now()
            if self._anchor is None or seen_ns - self._anchored_ns > _ANCHOR_NS:
                if self._anchor is not None:
                    self._spare.append(self._anchor)
                self._anchor, self._anchored_ns = first, seen_ns
                self._low = self._high = None
                start = 0.0
            else:
                start = self._anchor.elapsed_time(first) * 1e6
                self._spare.append(first)
            end = self._anchor.elapsed_time(last) * 1e6
            self._spare.append(last)
            low = max(first_ns - start, last_ns - end)
            self._low = low if self._low is None else max(self._low, low)
            self._high = seen_ns - end if self._high is None else min(self._high, seen_ns - end)
            self._emit(int(start + self._low), int(end + self._low), facts)
