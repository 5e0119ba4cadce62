"""What a rank's main thread did, span by span, as the probe timed it: fine for the last minute, in sums beyond.

Three grains: single pieces, sums over 20 ms, sums over a second. A column is drawn from the coarsest that it does not show.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ppscope.phase_sums import PhaseSums, PhaseTimes
from ppscope.probe.layout import GRAPHS, MODES
from ppscope.session.bucket_slots import BucketSlots
from ppscope.session.flatten import Piece
from ppscope.views import Cell, PhaseStyle, Span

BUCKET_NS = 20_000_000
FINE_KEEP_NS = 60_000_000_000
KEEP_NS = 600_000_000_000
_SECOND = 1_000_000_000
_FINE_MOST = 400_000
_TRIM = 8192


class ExactTimeline:
    """Pieces in order and disjoint. Where nothing was timed there is nothing: dormant, overrun, or before the probe.

    The time between two pieces is the loop's own, of phase `other`; with `other` None it is empty (a GPU between two forwards).
    `keep_all` drops nothing.
    """

    def __init__(self, styles: Sequence[PhaseStyle], other: int | None, keep_all: bool = False) -> None:
        self._keep_all = keep_all
        self._work = [style.kind == "work" for style in styles]
        self._other = other
        self._starts = array("q")
        self._ends = array("q")
        self._phases = array("h")
        self._slots = array("h")
        self._modes = array("B")
        self._sizes = array("H")
        self._tokens = array("I")
        self._graphs = array("B")
        self._buckets = PhaseSums(BUCKET_NS)
        self._bucket_slots = BucketSlots()
        self._seconds = PhaseSums(_SECOND)
        self._rolled = -1
        self._joined = False
        self._trim_at = _TRIM
        self.segments: list[tuple[int, int]] = []
        """(start ns, end ns) of what was timed without a hole, oldest first."""

    @property
    def extent(self) -> tuple[int, int] | None:
        """Oldest start and newest end, None while nothing was timed."""
        return (self.segments[0][0], self.segments[-1][1]) if self.segments else None

    def break_here(self) -> None:
        """What comes next does not follow on what came last."""
        self._joined = False

    def add(self, pieces: Sequence[Piece]) -> None:
        """Append pieces, in order; what overlaps an earlier one is cut off."""
        last = self._ends[-1] if self._ends else 0
        pieces = _in_order(pieces, last)
        if not pieces:
            return
        start, end = pieces[0][0], pieces[-1][1]
        if self._joined:
            self.segments[-1] = (self.segments[-1][0], end)
        else:
            self.segments.append((start, end))
            last = start
            self._joined = True
        for column, values in zip(self._columns(), zip(*pieces, strict=True), strict=True):
            column.extend(values)
        self._sum_all(pieces, last)
        self._trim_at -= len(pieces)
        if self._trim_at <= 0 and not self._keep_all:
            self._trim_at = _TRIM
            self._trim(end)

    def _columns(self) -> tuple[array[int], ...]:
        # In the order of a piece's fields.
        return (
            self._starts, self._ends, self._phases, self._slots, self._modes, self._sizes, self._tokens, self._graphs
        )  # fmt: skip

    def _sum_all(self, pieces: Sequence[Piece], last: int) -> None:
        # Pieces are short: those within one bucket are added up before they go there.
        other = self._other
        times: PhaseTimes = {}
        bucket = bucket_end = known = -1
        begin = last
        for start, end, phase, slot, *_ in pieces:
            if start > last and other is not None:
                if start <= bucket_end:
                    times[other] = times.get(other, 0) + start - last
                else:
                    self._buckets.add(last, start, other)
            if end <= bucket_end and slot == known:
                times[phase] = times.get(phase, 0) + end - start
            else:
                self._buckets.add_times(bucket, times)
                self._buckets.add(start, end, phase)
                self._bucket_slots.mark(start // BUCKET_NS, (end - 1) // BUCKET_NS, slot)
                bucket = (end - 1) // BUCKET_NS
                times, bucket_end, known = {}, (bucket + 1) * BUCKET_NS, slot
            last = end
        self._buckets.add_times(bucket, times)
        self._roll(begin, last)

    def _roll(self, start_ns: int, end_ns: int) -> None:
        # Seconds that are whole now: the one that was not yet, and those of these pieces.
        first, upto = start_ns // _SECOND, end_ns // _SECOND
        if 0 <= self._rolled < first:
            self._roll_second(self._rolled)
        for second in range(first, upto):
            self._roll_second(second)
        self._rolled = upto

    def _roll_second(self, second: int) -> None:
        self._seconds.add_times(second, self._bucket_sum(second * _SECOND, (second + 1) * _SECOND))

    def _bucket_sum(self, start_ns: int, end_ns: int) -> PhaseTimes:
        return self._buckets.between(start_ns // BUCKET_NS, -(-end_ns // BUCKET_NS))

    def _trim(self, newest_ns: int) -> None:
        gone = max(bisect_left(self._ends, newest_ns - FINE_KEEP_NS), len(self._ends) - _FINE_MOST)
        if gone > 0:
            for column in self._columns():
                del column[:gone]
        self._buckets.drop_before(newest_ns - FINE_KEEP_NS - _SECOND)
        self._bucket_slots.drop_before((newest_ns - FINE_KEEP_NS - _SECOND) // BUCKET_NS)
        self._seconds.drop_before(newest_ns - KEEP_NS)
        while self.segments and self.segments[0][1] < newest_ns - KEEP_NS:
            del self.segments[0]

    # -- values out

    def times(self, start_ns: int, end_ns: int) -> PhaseTimes:
        """Nanoseconds per phase within a window, to 20 ms at its edges; to a second for windows older than a minute."""
        if self._buckets and start_ns >= self._buckets.oldest_ns:
            return self._bucket_sum(start_ns, end_ns)
        first, upto = start_ns // _SECOND, -(-end_ns // _SECOND)
        total = self._seconds.between(first, min(upto, self._rolled))
        if first <= self._rolled < upto:
            self._buckets.add_between(
                total, *(edge * _SECOND // BUCKET_NS for edge in (self._rolled, self._rolled + 1))
            )
        return total

    def _indices(self, start_ns: int, end_ns: int) -> range:
        first = bisect_right(self._ends, start_ns)
        return range(first, bisect_left(self._starts, end_ns, lo=first))

    def spans(self, start_ns: int, end_ns: int) -> Iterator[Span]:
        """Single pieces that touch a window, in order."""
        for i in self._indices(start_ns, end_ns):
            yield Span(
                start_ns=self._starts[i],
                end_ns=self._ends[i],
                phase=self._phases[i],
                stack=None,
                micro_batch=self._slots[i] if self._slots[i] >= 0 else None,
                provenance="exact",
                mode=_name(MODES, self._modes[i]),
                batch_size=self._sizes[i] or None,
                tokens=self._tokens[i] or None,
                graph=_name(GRAPHS, self._graphs[i]),
            )

    def covers(self, at_ns: int) -> bool:
        """Whether an instant was timed."""
        index = bisect_right(self.segments, (at_ns, 1 << 63)) - 1
        return index >= 0 and at_ns < self.segments[index][1]

    def cells(self, start_ns: int, end_ns: int, columns: int) -> list[Cell | None]:
        """The window cut into equal columns; None where nothing was timed."""
        width = (end_ns - start_ns) / max(columns, 1)
        edges = [int(start_ns + width * column) for column in range(columns + 1)]
        fine_since = self._starts[0] if self._starts else end_ns
        cells: list[Cell | None] = []
        for begin, end in pairwise(edges):
            if width >= 3 * _SECOND or end <= fine_since:
                cells.append(self._cell(self.times(*_grid(begin, end, _SECOND)), -1))
            elif width >= 3 * BUCKET_NS:
                first, upto = _grid(begin, end, BUCKET_NS)
                slot = self._bucket_slots.only(first // BUCKET_NS, upto // BUCKET_NS)
                cells.append(self._cell(self._bucket_sum(first, upto), slot))
            else:
                cells.append(self._fine(begin, end))
        return cells

    def _fine(self, begin: int, end: int) -> Cell | None:
        times: PhaseTimes = {}
        longest, slot = 0, -1
        for i in self._indices(begin, end):
            took = min(self._ends[i], end) - max(self._starts[i], begin)
            phase = self._phases[i]
            times[phase] = times.get(phase, 0) + took
            if took > longest:
                longest, slot = took, self._slots[i]
        if not times and self._other is not None and self.covers((begin + end) // 2):
            times[self._other] = end - begin
        return self._cell(times, slot)

    def _cell(self, times: PhaseTimes, slot: int) -> Cell | None:
        seen = sum(times.values())
        if not seen:
            return None
        work = sum(took for phase, took in times.items() if self._work[phase])
        phase = max(times, key=times.__getitem__)
        return Cell(phase=phase, work=work / seen, micro_batch=slot if slot >= 0 else None)


def _in_order(pieces: Sequence[Piece], last: int) -> Sequence[Piece]:
    """The pieces with what lies before the end of the one before cut off; the same list where nothing does."""
    ends = [last]
    ends += [piece[1] for piece in pieces]
    if all(piece[0] >= before for piece, before in zip(pieces, ends, strict=False)):
        return pieces
    kept: list[Piece] = []
    for piece in pieces:
        if piece[1] > max(last, piece[0]):
            kept.append((max(piece[0], last), *piece[1:]))
            last = piece[1]
    return kept


def _name(names: Sequence[str], code: int) -> str | None:
    return names[code] or None if code < len(names) else None


def _grid(begin: int, end: int, step: int) -> tuple[int, int]:
    # Whole steps, each of them in exactly one column: the one its middle lies in.
    return (begin + step // 2) // step * step, (end + step // 2) // step * step
