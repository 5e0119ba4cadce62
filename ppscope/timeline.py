"""What each rank's main thread did, as bounded columns: single spans for zooming in, sums over quarter seconds for zooming out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from ppscope.phase_sums import PhaseSums, PhaseTimes
from ppscope.span_columns import SpanColumns
from ppscope.views import Cell, PhaseStyle, Span

KEEP_NS = 600 * 1_000_000_000
"""The last ten minutes stay scrollable."""
GRAIN_NS = 250_000_000
COARSE_COLUMN_NS = 3 * GRAIN_NS
"""A Gantt column at least this wide is drawn from the sums."""


class RankTimeline:
    """Spans of one rank's main thread, in order and disjoint; times are monotonic nanoseconds."""

    def __init__(self, styles: Sequence[PhaseStyle], keep_ns: int = KEEP_NS) -> None:
        self._keep_ns = keep_ns
        self._work = [style.kind == "work" for style in styles]
        self._spans = SpanColumns()
        self._sums = PhaseSums(GRAIN_NS)

    def __len__(self) -> int:
        return len(self._spans)

    @property
    def extent(self) -> tuple[int, int] | None:
        """Oldest start and newest end, None while nothing was seen."""
        return self._spans.extent

    def add(self, start_ns: int, end_ns: int, phase: int, stack: int) -> None:
        """Append a span; what overlaps an earlier one is cut off, since windows overlap by design."""
        extent = self._spans.extent
        if extent is not None and extent[1] > start_ns:
            start_ns = extent[1]
        if end_ns <= start_ns:
            return
        self._sums.add(start_ns, end_ns, phase)
        if self._spans.append((start_ns, end_ns, phase, stack, -1)):
            self._spans.drop_before(end_ns - self._keep_ns)
            self._sums.drop_before(end_ns - self._keep_ns)

    def mark_micro_batch(self, at_ns: int, phase: int, micro_batch: int) -> bool:
        """Give the span at an instant its micro-batch, if that span is in this phase; True when one was marked."""
        return self._spans.mark_micro_batch(at_ns, phase, micro_batch)

    def spans(self, start_ns: int, end_ns: int) -> Iterator[Span]:
        """Single spans that touch a window, in order."""
        for start, end, phase, stack, micro_batch in self._spans.touching(start_ns, end_ns):
            yield Span(
                start_ns=start,
                end_ns=end,
                phase=phase,
                stack=stack,
                micro_batch=micro_batch if micro_batch >= 0 else None,
                provenance="sampled" if micro_batch < 0 else "inferred",
            )

    def times(self, start_ns: int, end_ns: int) -> PhaseTimes:
        """Nanoseconds per phase within a window, exact at its edges."""
        total: PhaseTimes = {}
        first, last = -(-start_ns // GRAIN_NS), end_ns // GRAIN_NS
        if last <= first:
            self._add_times(total, start_ns, end_ns)
            return total
        self._add_times(total, start_ns, first * GRAIN_NS)
        self._sums.add_between(total, first, last)
        self._add_times(total, last * GRAIN_NS, end_ns)
        return total

    def _add_times(self, total: PhaseTimes, start_ns: int, end_ns: int) -> None:
        if start_ns >= end_ns:
            return
        for start, end, phase, *_ in self._spans.touching(start_ns, end_ns):
            total[phase] = total.get(phase, 0) + min(end, end_ns) - max(start, start_ns)

    def rough_times(self, start_ns: int, end_ns: int) -> PhaseTimes:
        """Nanoseconds per phase within a window, to the quarter second at its edges: cheap over long windows."""
        return self._sums.between(start_ns // GRAIN_NS, end_ns // GRAIN_NS + 1)

    def cells(self, start_ns: int, end_ns: int, columns: int) -> tuple[Cell, ...]:
        """The window cut into equal columns: each with the phase that filled most of it and its share of work."""
        if columns <= 0 or end_ns <= start_ns:
            return ()
        width = (end_ns - start_ns) / columns
        if width >= COARSE_COLUMN_NS:
            return tuple(self._cell(times, -1) for times in self._coarse(start_ns, width, columns))
        buckets: list[PhaseTimes] = [{} for _ in range(columns)]
        marks: list[int] = [-1] * columns
        self._fill_fine(buckets, marks, start_ns, end_ns, width)
        return tuple(self._cell(times, mark) for times, mark in zip(buckets, marks, strict=True))

    def _coarse(self, start_ns: int, width: float, columns: int) -> Iterator[PhaseTimes]:
        # Whole cells, each in exactly one column: the one its middle lies in.
        edges = [int(start_ns + column * width + GRAIN_NS // 2) // GRAIN_NS for column in range(columns + 1)]
        for first, upto in pairwise(edges):
            yield self._sums.between(first, upto)

    def _fill_fine(self, buckets: list[PhaseTimes], marks: list[int], start_ns: int, end_ns: int, width: float) -> None:
        last = len(buckets) - 1
        for start, finish, phase, _, micro_batch in self._spans.touching(start_ns, end_ns):
            begin, end = max(start, start_ns), min(finish, end_ns)
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
