"""What each rank's main thread did, as bounded columns: single spans for zooming in, one-second sums for zooming out."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from ppscope.views import Cell, PhaseStyle, Span

KEEP_NS = 600 * 1_000_000_000
"""The last ten minutes stay scrollable."""
COARSE_COLUMN_NS = 3_000_000_000
"""A Gantt column at least this wide is drawn from the one-second sums."""
_SECOND = 1_000_000_000
_TRIM = 4096

PhaseTimes = dict[int, int]
"""Phase index → nanoseconds."""
_NO_TIMES: PhaseTimes = {}


class RankTimeline:
    """Spans of one rank's main thread, in order and disjoint; times are monotonic nanoseconds."""

    def __init__(self, styles: Sequence[PhaseStyle], keep_ns: int = KEEP_NS) -> None:
        self._keep_ns = keep_ns
        self._work = [style.kind == "work" for style in styles]
        self._starts = array("q")
        self._ends = array("q")
        self._phases = array("h")
        self._stacks = array("i")
        self._micro_batches = array("h")
        self._seconds: dict[int, PhaseTimes] = {}

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def extent(self) -> tuple[int, int] | None:
        """Oldest start and newest end, None while nothing was seen."""
        return (self._starts[0], self._ends[-1]) if self._starts else None

    def add(self, start_ns: int, end_ns: int, phase: int, stack: int) -> None:
        """Append a span; what overlaps an earlier one is cut off, since windows overlap by design."""
        if self._ends:
            start_ns = max(start_ns, self._ends[-1])
        if end_ns <= start_ns:
            return
        self._starts.append(start_ns)
        self._ends.append(end_ns)
        self._phases.append(phase)
        self._stacks.append(stack)
        self._micro_batches.append(-1)
        self._sum(start_ns, end_ns, phase)
        if len(self._starts) % _TRIM == 0:
            self._trim(end_ns - self._keep_ns)

    def _sum(self, start_ns: int, end_ns: int, phase: int) -> None:
        while start_ns < end_ns:
            second = start_ns // _SECOND
            upto = min(end_ns, (second + 1) * _SECOND)
            times = self._seconds.setdefault(second, {})
            times[phase] = times.get(phase, 0) + upto - start_ns
            start_ns = upto

    def _trim(self, before_ns: int) -> None:
        gone = bisect_left(self._ends, before_ns)
        for column in (self._starts, self._ends, self._phases, self._stacks, self._micro_batches):
            del column[:gone]
        for second in [s for s in self._seconds if (s + 1) * _SECOND <= before_ns]:
            del self._seconds[second]

    def mark_micro_batch(self, at_ns: int, phase: int, micro_batch: int) -> bool:
        """Give the span at an instant its micro-batch, if that span is in this phase; True when one was marked."""
        index = bisect_right(self._starts, at_ns) - 1
        if index < 0 or self._ends[index] < at_ns or self._phases[index] != phase:
            return False
        self._micro_batches[index] = micro_batch
        return True

    def _indices(self, start_ns: int, end_ns: int) -> range:
        first = bisect_right(self._ends, start_ns)
        return range(first, bisect_left(self._starts, end_ns, lo=first))

    def spans(self, start_ns: int, end_ns: int) -> Iterator[Span]:
        """Single spans that touch a window, in order."""
        for i in self._indices(start_ns, end_ns):
            micro_batch = self._micro_batches[i]
            yield Span(
                start_ns=self._starts[i],
                end_ns=self._ends[i],
                phase=self._phases[i],
                stack=self._stacks[i],
                micro_batch=micro_batch if micro_batch >= 0 else None,
                provenance="sampled" if micro_batch < 0 else "inferred",
            )

    def times(self, start_ns: int, end_ns: int) -> PhaseTimes:
        """Nanoseconds per phase within a window, exact at its edges."""
        total: PhaseTimes = {}
        first, last = -(-start_ns // _SECOND), end_ns // _SECOND
        if last <= first:
            self._add_times(total, start_ns, end_ns)
            return total
        self._add_times(total, start_ns, first * _SECOND)
        for second in range(first, last):
            for phase, took in self._seconds.get(second, _NO_TIMES).items():
                total[phase] = total.get(phase, 0) + took
        self._add_times(total, last * _SECOND, end_ns)
        return total

    def _add_times(self, total: PhaseTimes, start_ns: int, end_ns: int) -> None:
        for i in self._indices(start_ns, end_ns):
            took = min(self._ends[i], end_ns) - max(self._starts[i], start_ns)
            phase = self._phases[i]
            total[phase] = total.get(phase, 0) + took

    def whole_seconds(self, start_ns: int, end_ns: int) -> PhaseTimes:
        """Nanoseconds per phase within a window, to the whole second at its edges: cheap over long windows."""
        total: PhaseTimes = {}
        for second in range(start_ns // _SECOND, end_ns // _SECOND + 1):
            for phase, took in self._seconds.get(second, {}).items():
                total[phase] = total.get(phase, 0) + took
        return total

    def cells(self, start_ns: int, end_ns: int, columns: int) -> tuple[Cell, ...]:
        """The window cut into equal columns: each with the phase that filled most of it and its share of work."""
        if columns <= 0 or end_ns <= start_ns:
            return ()
        width = (end_ns - start_ns) / columns
        buckets: list[PhaseTimes] = [{} for _ in range(columns)]
        marks: list[int] = [-1] * columns
        if width >= COARSE_COLUMN_NS:
            self._fill_coarse(buckets, start_ns, width)
        else:
            self._fill_fine(buckets, marks, start_ns, end_ns, width)
        return tuple(self._cell(times, mark) for times, mark in zip(buckets, marks, strict=True))

    def _fill_coarse(self, buckets: list[PhaseTimes], start_ns: int, width: float) -> None:
        first = start_ns // _SECOND
        last = int(start_ns + width * len(buckets)) // _SECOND
        seconds: Sequence[int] | range = range(first, last + 1)
        if len(seconds) > len(self._seconds):
            seconds = sorted(s for s in self._seconds if first <= s <= last)
        for second in seconds:
            column = int((second * _SECOND + _SECOND // 2 - start_ns) // width)
            times = self._seconds.get(second)
            if times is None or not 0 <= column < len(buckets):
                continue
            into = buckets[column]
            for phase, took in times.items():
                into[phase] = into.get(phase, 0) + took

    def _fill_fine(self, buckets: list[PhaseTimes], marks: list[int], start_ns: int, end_ns: int, width: float) -> None:
        last = len(buckets) - 1
        for i in self._indices(start_ns, end_ns):
            begin, end = max(self._starts[i], start_ns), min(self._ends[i], end_ns)
            phase, micro_batch = self._phases[i], self._micro_batches[i]
            column = min(int((begin - start_ns) / width), last)
            while begin < end:
                edge = end if column >= last else min(end, int(start_ns + (column + 1) * width))
                if edge > begin:
                    times = buckets[column]
                    times[phase] = times.get(phase, 0) + edge - begin
                    if micro_batch >= 0:
                        marks[column] = micro_batch
                    begin = edge
                column += 1

    def _cell(self, times: PhaseTimes, micro_batch: int) -> Cell:
        if not times:
            return Cell(phase=None, work=None)
        seen = sum(times.values())
        work = sum(took for phase, took in times.items() if self._work[phase])
        return Cell(
            phase=max(times, key=times.__getitem__),
            work=work / seen,
            micro_batch=micro_batch if micro_batch >= 0 else None,
        )
