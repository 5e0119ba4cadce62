"""Work of several processes on a few cores, as the kernel's fair scheduler deals them out."""

from __future__ import annotations

import heapq
import math


class SharedCores:
    """A clock of work: each piece has a core of its own, or all go slower alike where there are fewer cores than pieces.

    `cores` None: there are always enough. Pieces are named by a number that the caller gives.
    """

    def __init__(self, cores: float | None) -> None:
        self._cores = math.inf if cores is None else cores
        self._now_s = 0.0
        self._done_s = 0.0
        """How far a piece would be that had run from the beginning: all that run at once get on alike."""
        self._ends: list[tuple[float, int]] = []

    def add(self, piece: int, work_s: float, now_s: float) -> None:
        """Begin a piece of work."""
        self.advance(now_s)
        heapq.heappush(self._ends, (self._done_s + work_s, piece))

    def advance(self, now_s: float) -> None:
        """Let the work go on to an instant between the last one and `next_end`; ValueError for one before."""
        if now_s < self._now_s:
            raise ValueError("time goes forward")
        self._done_s += (now_s - self._now_s) * self._speed()
        self._now_s = now_s

    def next_end(self) -> float | None:
        """When the next piece will be done, if nothing is added; None without work."""
        if not self._ends:
            return None
        return self._now_s + max(self._ends[0][0] - self._done_s, 0.0) / self._speed()

    def pop(self, end_s: float) -> int:
        """Take out the piece that is done at `next_end`."""
        self.advance(end_s)
        return heapq.heappop(self._ends)[1]

    def _speed(self) -> float:
        return min(1.0, self._cores / len(self._ends)) if self._ends else 1.0
