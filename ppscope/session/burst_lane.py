"""Exact spans of one lane of a burst, drawn as columns: in single spans when zoomed in, in sums over a millisecond beyond."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from ppscope.views import Cell, PhaseStyle, Span

BUCKET_NS = 1_000_000
COARSE_COLUMN_NS = 4 * BUCKET_NS

Piece = tuple[int, int, int, bool]
"""(start ns, end ns, phase, whether an eager launch ran where a replay was expected)"""

Times = dict[int, int]


class BurstLane:
    """Disjoint pieces in order; a cell is None where they cover less than half of it."""

    def __init__(self, styles: Sequence[PhaseStyle], pieces: Iterable[Piece]) -> None:
        self._work = [style.kind == "work" for style in styles]
        self._starts = array("q")
        self._ends = array("q")
        self._phases = array("h")
        self._marks = bytearray()
        self._buckets: dict[int, Times] = {}
        self._marked: set[int] = set()
        for start, end, phase, mark in pieces:
            self._starts.append(start)
            self._ends.append(end)
            self._phases.append(phase)
            self._marks.append(mark)
            self._sum(start, end, phase, mark)

    @property
    def extent(self) -> tuple[int, int] | None:
        """First start and last end, None for an empty lane."""
        return (self._starts[0], self._ends[-1]) if self._starts else None

    def _sum(self, start: int, end: int, phase: int, mark: bool) -> None:
        while start < end:
            bucket = start // BUCKET_NS
            upto = min(end, (bucket + 1) * BUCKET_NS)
            times = self._buckets.setdefault(bucket, {})
            times[phase] = times.get(phase, 0) + upto - start
            if mark:
                self._marked.add(bucket)
            start = upto

    def cells(self, start_ns: int, end_ns: int, columns: int) -> list[Cell | None]:
        """The window cut into equal columns."""
        extent = self.extent
        if columns <= 0 or extent is None or extent[0] >= end_ns or extent[1] <= start_ns:
            return [None] * max(columns, 0)
        width = (end_ns - start_ns) / columns
        sums: list[Times] = [{} for _ in range(columns)]
        marks = [False] * columns
        fill = self._fill_coarse if width >= COARSE_COLUMN_NS else self._fill_fine
        fill(sums, marks, start_ns, end_ns, width)
        return [self._cell(times, mark, width) for times, mark in zip(sums, marks, strict=True)]

    def _fill_coarse(self, sums: list[Times], marks: list[bool], start_ns: int, end_ns: int, width: float) -> None:
        extent = self.extent
        assert extent is not None
        first = max(start_ns, extent[0]) // BUCKET_NS
        last = min(end_ns, extent[1]) // BUCKET_NS
        for bucket in range(first, last + 1):
            times = self._buckets.get(bucket)
            column = int((bucket * BUCKET_NS + BUCKET_NS // 2 - start_ns) // width)
            if times is None or not 0 <= column < len(sums):
                continue
            into = sums[column]
            for phase, took in times.items():
                into[phase] = into.get(phase, 0) + took
            marks[column] = marks[column] or bucket in self._marked

    def _fill_fine(self, sums: list[Times], marks: list[bool], start_ns: int, end_ns: int, width: float) -> None:
        last = len(sums) - 1
        for i in self._indices(start_ns, end_ns):
            begin, end = max(self._starts[i], start_ns), min(self._ends[i], end_ns)
            phase = self._phases[i]
            column = min(int((begin - start_ns) / width), last)
            while begin < end:
                edge = end if column >= last else min(end, int(start_ns + (column + 1) * width))
                if edge > begin:
                    sums[column][phase] = sums[column].get(phase, 0) + edge - begin
                    marks[column] = marks[column] or bool(self._marks[i])
                    begin = edge
                column += 1

    def _cell(self, times: Times, mark: bool, width: float) -> Cell | None:
        seen = sum(times.values())
        if seen * 2 < width:
            return None
        work = sum(took for phase, took in times.items() if self._work[phase])
        phase = max(times, key=times.__getitem__)
        return Cell(phase=phase, work=work / seen, mark="eager" if mark else None)

    def _indices(self, start_ns: int, end_ns: int) -> range:
        first = bisect_right(self._ends, start_ns)
        return range(first, bisect_left(self._starts, end_ns, lo=first))

    def covers(self, at_ns: int) -> bool:
        """Whether a piece holds this instant."""
        index = bisect_right(self._starts, at_ns) - 1
        return index >= 0 and at_ns < self._ends[index]

    def spans(self, start_ns: int, end_ns: int) -> Iterator[Span]:
        """Single pieces that touch a window, in order."""
        for i in self._indices(start_ns, end_ns):
            yield Span(self._starts[i], self._ends[i], self._phases[i], None, None, "exact")
