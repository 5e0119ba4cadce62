"""Sums over sets of intervals, kept as two arrays of nanoseconds in order."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence

import msgspec


class Intervals(msgspec.Struct, gc=False):
    """Disjoint intervals in order: `start_ns[i]` to `end_ns[i]`, both of type `q`."""

    start_ns: array[int]
    end_ns: array[int]

    @staticmethod
    def union(pairs: Iterable[tuple[int, int]]) -> Intervals:
        """The union of (start, end) pairs that come in order of their starts; empty ones vanish."""
        start_ns, end_ns = array("q"), array("q")
        last_ns: int | None = None
        for start, end in pairs:
            if end <= start:
                continue
            if last_ns is None or start > last_ns:
                start_ns.append(start)
                end_ns.append(end)
                last_ns = end
            elif end > last_ns:
                end_ns[-1] = last_ns = end
        return Intervals(start_ns, end_ns)

    def share(self, windows: Sequence[tuple[int, int]]) -> float:
        """The share of several windows that is covered, 0–1."""
        return sum(map(self.total_ns, windows)) / sum(end - start for start, end in windows)

    def total_ns(self, window: tuple[int, int]) -> int:
        """The time covered inside the window."""
        start_ns, end_ns = window
        first = max(bisect_right(self.start_ns, start_ns) - 1, 0)
        covered = 0
        for index in range(first, len(self.start_ns)):
            if self.start_ns[index] >= end_ns:
                break
            covered += max(0, min(self.end_ns[index], end_ns) - max(self.start_ns[index], start_ns))
        return covered

    def shifted(self, offset_ns: int) -> Intervals:
        """The same intervals on a clock that is `offset_ns` ahead."""
        if not offset_ns:
            return self
        return Intervals(
            array("q", [at + offset_ns for at in self.start_ns]), array("q", [at + offset_ns for at in self.end_ns])
        )


def merged(one: Intervals, other: Intervals) -> Intervals:
    """The union of two sets."""
    if not one.start_ns or not other.start_ns:
        return one if one.start_ns else other
    pairs = [*zip(one.start_ns, one.end_ns, strict=True), *zip(other.start_ns, other.end_ns, strict=True)]
    return Intervals.union(sorted(pairs))


def concurrency_ns(sets: Sequence[Intervals], window: tuple[int, int]) -> list[int]:
    """Nanoseconds of the window during which exactly 0, 1, 2 … of the sets were active."""
    start_ns, end_ns = window
    edges: list[tuple[int, int]] = []
    for one in sets:
        for at, to in zip(one.start_ns, one.end_ns, strict=True):
            if to > start_ns and at < end_ns:
                edges.append((max(at, start_ns), 1))
                edges.append((min(to, end_ns), -1))
    edges.sort()
    held = [0] * (len(sets) + 1)
    active, last_ns = 0, start_ns
    for at, change in edges:
        held[active] += at - last_ns
        active += change
        last_ns = at
    held[active] += max(end_ns - last_ns, 0)
    return held
