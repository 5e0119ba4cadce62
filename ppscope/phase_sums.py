"""How long each phase lasted, in equal cells of time: packed, so that ten minutes of 64 ranks take a few megabytes."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

PhaseTimes = dict[int, int]
"""Phase index → nanoseconds."""
_CHUNK = 128
"""Cells that are allocated, and dropped, together: time in which nothing was seen takes no memory."""


class PhaseSums:
    """Nanoseconds per phase in cells of `grain_ns` (at most 4 s); what is added is disjoint, so that a cell never holds more than that."""

    def __init__(self, grain_ns: int) -> None:
        self.grain_ns = grain_ns
        self._chunks: dict[int, dict[int, array[int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._chunks)

    @property
    def oldest_ns(self) -> int:
        """No cell older than this is held; only where something is."""
        return min(self._chunks) * _CHUNK * self.grain_ns

    def add(self, start_ns: int, end_ns: int, phase: int) -> None:
        """Add a span to the cells that it touches."""
        grain_ns = self.grain_ns
        while start_ns < end_ns:
            cell = start_ns // grain_ns
            upto = min(end_ns, (cell + 1) * grain_ns)
            chunk, at = divmod(cell, _CHUNK)
            self._sums(chunk, phase)[at] += upto - start_ns
            start_ns = upto

    def add_times(self, cell: int, times: Mapping[int, int]) -> None:
        """Add to one cell."""
        chunk, at = divmod(cell, _CHUNK)
        for phase, took in times.items():
            self._sums(chunk, phase)[at] += took

    def _sums(self, chunk: int, phase: int) -> array[int]:
        phases = self._chunks.get(chunk)
        if phases is None:
            phases = self._chunks[chunk] = {}
        sums = phases.get(phase)
        if sums is None:
            sums = phases[phase] = array("I", bytes(4 * _CHUNK))
        return sums

    def between(self, first: int, upto: int) -> PhaseTimes:
        """Sum over the cells from the first up to, not with, the last."""
        total: PhaseTimes = {}
        self.add_between(total, first, upto)
        return total

    def add_between(self, total: PhaseTimes, first: int, upto: int) -> None:
        """Add those cells to a sum."""
        if upto <= first:
            return
        low, high = first // _CHUNK, (upto - 1) // _CHUNK
        chunks = range(low, high + 1) if high - low < len(self._chunks) else sorted(self._chunks)
        for chunk in chunks:
            phases = self._chunks.get(chunk)
            if phases is None:
                continue
            begin, end = max(first - chunk * _CHUNK, 0), min(upto - chunk * _CHUNK, _CHUNK)
            for phase, sums in phases.items():
                took = sum(sums[begin:end]) if begin < end else 0
                if took:
                    total[phase] = total.get(phase, 0) + took

    def drop_before(self, before_ns: int) -> None:
        """Forget chunks that end before an instant."""
        for chunk in [chunk for chunk in self._chunks if (chunk + 1) * _CHUNK * self.grain_ns <= before_ns]:
            del self._chunks[chunk]
