"""Wall time of an instant, by what a stream says of both clocks again and again: the wall clock may be set meanwhile."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable

from ppscope.records import AnyRecord, Clock, Hello


class WallClock:
    """Readings of both clocks. The nearest one counts: of a window the last reading is kept and the first may be days old."""

    def __init__(self, records: Iterable[AnyRecord]) -> None:
        self._readings = sorted((one.mono_ns, one.wall_ns) for one in records if isinstance(one, Hello | Clock))

    def at(self, at_ns: int) -> int | None:
        """Wall time in ns since 1970 of an instant of CLOCK_MONOTONIC; None where the stream does not say."""
        after = bisect(self._readings, (at_ns,))
        near = self._readings[max(after - 1, 0) : after + 1]
        if not near:
            return None
        mono_ns, wall_ns = min(near, key=lambda reading: abs(reading[0] - at_ns))
        return wall_ns + at_ns - mono_ns
