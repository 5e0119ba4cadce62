"""A recording of any length for the screen: the blocks of time that are looked at are in memory, the rest stays in its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ppscope.records import AnyCommand, AnyRecord, LoopSample, ProbeSpans, RankKey, StackSpans
from ppscope.session.evidence import JUDGED_NS
from ppscope.session.interned import Interned
from ppscope.snapshot.index import Index
from ppscope.snapshot.recorded import RecordedSession, session_of
from ppscope.snapshot.window import is_bulk
from ppscope.target.phases import PhaseTable
from ppscope.views import MOST_SPANS, BurstOffer, Cell, Lane, PhaseStyle, Screen, Span, ThreadStacks

BLOCK_NS = 20_000_000_000
"""Every column width of the screen divides it."""
_REACH_NS = 5_000_000_000
"""So much of what lies before a block belongs to it: windows of stacks overlap, and the later one is cut."""
_COARSE_NS = 200_000_000
"""Columns at least this wide are kept when the spans they were made of are not."""
_STEP_BYTES = 4 << 20
_KEPT_BYTES = 4 << 20
_KEPT_CELLS = 100_000
_LANES = (StackSpans, ProbeSpans, LoopSample)
_NOTHING = Cell(phase=None, work=None)


class RecordingFeed:
    """Answers the screen from an index; see ppscope.feed.Feed.

    Figures and findings are those of the minute before the right edge of what is looked at. A recording that is no longer than that
    is taken whole. With a `stretch` (from, until in nanoseconds) nothing but that is there.
    """

    live = False

    def __init__(self, index: Index, stretch: tuple[int, int] | None = None) -> None:
        self._index = index
        self._interned = Interned(PhaseTable.load())
        for definition in index.definitions.all():
            self._interned.add(definition)
        self._oldest_ns, self._newest_ns = stretch or index.extent()
        self._follows = min(index.series_ns, self._newest_ns - self._oldest_ns) > JUDGED_NS
        self._is_part = stretch is not None
        self._looked_at = (self._oldest_ns, self._newest_ns)
        self._rested_ns = self._figures_ns = self._newest_ns
        self._blocks: dict[int, tuple[RecordedSession, int]] = {}
        self._coarse: dict[tuple[int, int], list[Lane]] = {}
        self._missing: list[int] = []
        self._budget = 0
        self._listed: tuple[tuple[RankKey, int, int], list[Span]] | None = None
        self._figures = self._figures_of(self._newest_ns)
        self._screen = self._figures.screen()

    # What is looked at.

    def look_at(self, start_ns: int, end_ns: int) -> None:
        """Take note of what the screen shows; figures follow once it rests."""
        end_ns = max(min(end_ns, self._newest_ns), self._oldest_ns)
        self._looked_at = (min(start_ns, end_ns), end_ns)

    def poll(self) -> bool:
        """Read on where lanes had to be left empty, and bring the figures to where the screen rests; True for anything new."""
        self._budget = _STEP_BYTES
        missing, self._missing = self._missing, []
        news = bool([number for number in missing if self._block(number) is not None])
        end_ns = self._looked_at[1]
        if self._follows and end_ns != self._figures_ns and end_ns == self._rested_ns:
            self._figures.forget()
            self._figures, self._figures_ns = self._figures_of(end_ns), end_ns
            self._screen = self._figures.screen()
            news = True
        self._rested_ns = end_ns
        return news

    def records(self) -> list[AnyRecord]:
        """What is on the screen, and at least the minute before its right edge, as a stream that stands alone."""
        start_ns, end_ns = self._looked_at
        if not self._follows:
            start_ns, end_ns = self.extent()
        start_ns = max(min(start_ns, end_ns - JUDGED_NS), self._oldest_ns)
        return list(self._index.stretch((start_ns, end_ns)))

    def _figures_of(self, end_ns: int) -> RecordedSession:
        if not self._follows and not self._is_part:
            return session_of(self._index.stretch(None, defined=False), self._interned)
        begin = max(end_ns - JUDGED_NS - _REACH_NS, self._oldest_ns)
        return session_of(self._index.stretch((begin, end_ns), defined=False), self._interned)

    # Values out.

    def now_ns(self) -> int:
        """The end of the recording."""
        return self._newest_ns

    def extent(self) -> tuple[int, int]:
        """Oldest and newest instant of the recording."""
        return self._oldest_ns, self._newest_ns

    def phases(self) -> tuple[PhaseStyle, ...]:
        """The phase styles that phase indices name."""
        return self._figures.phases()

    def screen(self) -> Screen:
        """Everything the main screen draws, as of `Screen.now_ns`."""
        return self._screen

    def lanes(self, start_ns: int, end_ns: int, columns: int, ranks: Sequence[RankKey] | None = None) -> list[Lane]:
        """Gantt rows; columns must not lie in two blocks. What is too much to be read at once is empty until `poll` has read it."""
        if not self._follows:
            return self._figures.lanes(start_ns, end_ns, columns, ranks)
        if columns <= 0 or end_ns <= start_ns:
            return []
        keys = list(ranks) if ranks is not None else sorted(key for key in self._figures.states if key.tp == 0)
        width = (end_ns - start_ns) // columns
        cells: dict[tuple[RankKey, str], list[Cell]] = {(key, "host"): [_NOTHING] * columns for key in keys}
        sure: dict[tuple[RankKey, str], set[str]] = {}
        self._budget, self._missing = _STEP_BYTES, []
        for number in self._numbers(start_ns, end_ns):
            begin = max(start_ns, number * BLOCK_NS)
            end = min(end_ns, (number + 1) * BLOCK_NS)
            at = (begin - start_ns) // width
            for lane in self._block_lanes(number, begin, end, width, keys):
                row = cells.setdefault((lane.rank, lane.lane), [_NOTHING] * columns)
                row[at : at + len(lane.cells)] = lane.cells
                if any(cell.phase is not None for cell in lane.cells):
                    sure.setdefault((lane.rank, lane.lane), set()).add(lane.provenance)
        order = {key: place for place, key in enumerate(keys)}
        rows = sorted(cells, key=lambda row: (order[row[0]], row[1] != "host"))
        return [
            Lane(rank, lane, "exact" if sure.get((rank, lane)) == {"exact"} else "sampled", tuple(cells[rank, lane]))
            for rank, lane in rows
        ]

    def _block_lanes(self, number: int, begin: int, end: int, width: int, keys: list[RankKey]) -> list[Lane]:
        if width < _COARSE_NS:
            session = self._block(number)
            return [] if session is None else session.lanes(begin, end, (end - begin) // width, keys)
        whole = self._coarse.get((number, width))
        if whole is None:
            session = self._block(number)
            if session is None:
                return []
            edges = (number * BLOCK_NS, (number + 1) * BLOCK_NS)
            whole = session.lanes(*edges, BLOCK_NS // width, sorted(session.states))
            self._coarse[number, width] = whole
            while sum(len(lane.cells) for lanes in self._coarse.values() for lane in lanes) > _KEPT_CELLS:
                del self._coarse[next(iter(self._coarse))]
        first, upto = (begin - number * BLOCK_NS) // width, (end - number * BLOCK_NS) // width
        wanted = set(keys)
        return [
            Lane(lane.rank, lane.lane, lane.provenance, lane.cells[first:upto]) for lane in whole if lane.rank in wanted
        ]

    def spans(self, rank: RankKey, start_ns: int, end_ns: int) -> list[Span]:
        """Single spans of a rank's main thread, in order; of more than a list shows the newest."""
        if not self._follows:
            return self._figures.spans(rank, start_ns, end_ns)
        asked = rank, start_ns, end_ns
        if self._listed is not None and self._listed[0] == asked:
            return self._listed[1]  # every repaint asks again
        found: list[list[Span]] = []
        self._budget = 1 << 62
        numbers = list(self._numbers(start_ns, end_ns))
        for number in reversed(numbers):
            session = self._block(number)
            begin = start_ns if number == numbers[0] else number * BLOCK_NS
            end = min(end_ns, (number + 1) * BLOCK_NS)
            spans = session.spans(rank, begin, end) if session is not None else []
            # One that began in the block before is told there.
            found.append(spans if number == numbers[0] else [span for span in spans if span.start_ns >= begin])
            if sum(map(len, found)) >= MOST_SPANS:
                break
        listed = [span for spans in reversed(found) for span in spans]
        self._listed = asked, listed
        return listed

    def stacks(self, rank: RankKey, seconds: float, until_ns: int | None = None) -> list[ThreadStacks]:
        """Stack trees of a rank's threads over the seconds before the figures' instant, or an earlier one."""
        return self._figures.stacks(rank, seconds, until_ns)

    def stack_text(self, stack: int) -> list[tuple[str, str, int | None]]:
        """(function, file, line) of a stack, outermost first."""
        return self._interned.frames(stack)

    # Blocks.

    def _numbers(self, start_ns: int, end_ns: int) -> Iterator[int]:
        first = max(start_ns, self._oldest_ns) // BLOCK_NS
        last = min(end_ns - 1, self._newest_ns) // BLOCK_NS
        return iter(range(first, last + 1))

    def _block(self, number: int) -> RecordedSession | None:
        """The session of a block; None when enough has been read for now."""
        known = self._blocks.pop(number, None)
        if known is None:
            if self._budget <= 0:
                self._missing.append(number)
                return None
            begin, end = number * BLOCK_NS, (number + 1) * BLOCK_NS
            records = [
                record
                for record in self._index.records(begin - _REACH_NS, end, defined=False)
                if isinstance(record, _LANES) or not is_bulk(record)
            ]
            session = RecordedSession(records, self._interned)
            session.poll()
            known = session, self._index.size(begin - _REACH_NS, end)
            self._budget -= known[1]
        self._blocks[number] = known
        while len(self._blocks) > 4 and sum(size for _, size in self._blocks.values()) > _KEPT_BYTES:
            self._blocks.pop(next(iter(self._blocks)))[0].forget()
        return known[0]

    # What a recording cannot do.

    def burst(self) -> BurstOffer | None:
        """None: nobody can be asked for a profile."""
        return None

    def send(self, command: AnyCommand) -> None:
        """Nobody listens."""

    def ended(self) -> str | None:
        """None: it is as it is."""
        return None

    def close(self) -> None:
        """Nothing to end."""
