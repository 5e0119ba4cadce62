"""A recording by time: where in its files lies what, so that any stretch can be read without the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ppscope.collect.stream import encode
from ppscope.records import AnyRecord, BurstRank, Clock, FrameDef, Hello, ProbeSpans, Server, StackDef, StackSpans
from ppscope.snapshot.clip import clip
from ppscope.snapshot.window import EVENTS, POINTS, Definitions, Facts, extent_of, is_bulk

_ROWS = 1000


class Chunk(NamedTuple):
    """A piece of the stream. `facts` is what was known before it."""

    first_ns: int | None
    last_ns: int | None
    facts: tuple[AnyRecord, ...]
    size: int
    read: Callable[[], Iterable[AnyRecord]]

    def touches(self, start_ns: int | None, end_ns: int | None) -> bool:
        """Whether anything in it may lie within a stretch; None is open."""
        if self.first_ns is None or self.last_ns is None:
            return True
        return (end_ns is None or self.first_ns <= end_ns) and (start_ns is None or self.last_ns >= start_ns)


class _Extent:
    """Oldest and newest of what was added; None before."""

    __slots__ = ("first", "last")

    def __init__(self) -> None:
        self.first: int | None = None
        self.last: int | None = None

    def add(self, first: int | None, last: int | None) -> None:
        """Take in a stretch; None is none."""
        if first is not None and (self.first is None or first < self.first):
            self.first = first
        if last is not None and (self.last is None or last > self.last):
            self.last = last


class _Extents:
    """Of what is sampled or timed span by span, of all series, of profile bursts, and of everything."""

    def __init__(self) -> None:
        self.spans, self.series, self.bursts, self.all = _Extent(), _Extent(), _Extent(), _Extent()

    def add(self, other: _Extents) -> None:
        """Take in those of a part."""
        for name in ("spans", "series", "bursts", "all"):
            extent: _Extent = getattr(other, name)
            getattr(self, name).add(extent.first, extent.last)


class Index:
    """Chunks in the order of the stream, with all definitions and, chunk by chunk, the facts.

    Records go in once by `add`; `close_chunk` ends a piece and says how it is read again. Memory is that of definitions and facts.
    """

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.definitions = Definitions()
        self.hello: Hello | None = None
        self.servers = 0
        self.records_seen = 0
        self.exact = False
        """Whether spans were timed by the probe."""
        self._facts = Facts()
        self._told: set[bytes] = set()
        self._before: tuple[AnyRecord, ...] = ()
        self._news = False
        self._chunk, self._whole = _Extents(), _Extents()
        self._change: Callable[[Iterable[AnyRecord]], Iterable[AnyRecord]] = lambda records: records

    @classmethod
    def of(cls, records: Iterable[AnyRecord]) -> Index:
        """An index of records in memory."""
        index = cls()
        rows = list(records)
        for at in range(0, len(rows), _ROWS):
            part = rows[at : at + _ROWS]
            for record in part:
                index.add(record)
            index.close_chunk(len(part), part.__iter__)
        return index

    def add(self, record: AnyRecord) -> None:
        """Take in the next record of the stream."""
        self.records_seen += 1
        if isinstance(record, POINTS):
            self._chunk.series.add(record.at_ns, record.at_ns)
            return
        if isinstance(record, FrameDef | StackDef):
            self.definitions.add(record)
            return
        extent = extent_of(record)
        if extent is not None and not isinstance(record, Hello | Clock):
            into = self._chunk
            into.all.add(*extent)
            if is_bulk(record):
                into.series.add(*extent)
            if isinstance(record, StackSpans | ProbeSpans):
                into.spans.add(*extent)
                self.exact = self.exact or isinstance(record, ProbeSpans)
            elif isinstance(record, BurstRank):
                into.bursts.add(*extent)
        if not is_bulk(record):
            self._add_fact(record)

    def _add_fact(self, record: AnyRecord) -> None:
        if isinstance(record, Hello) and self.hello is None:
            self.hello = record
        if isinstance(record, Server):
            self.servers += 1
        if isinstance(record, EVENTS):
            frame = encode(record)
            if frame in self._told:
                return  # each part of a recording begins with the facts so far
            self._told.add(frame)
        self._facts.add(record)
        self._news = True

    def close_chunk(self, size: int, read: Callable[[], Iterable[AnyRecord]]) -> None:
        """What was added since the last call is one chunk of `size` bytes, which `read` reads again."""
        done, self._chunk = self._chunk, _Extents()
        done.all.add(done.series.first, done.series.last)
        self.chunks.append(Chunk(done.all.first, done.all.last, self._before, size, read))
        self._whole.add(done)
        if self._news:
            self._before = tuple(self._facts.records())
            self._news = False

    def extent(self) -> tuple[int, int]:
        """Oldest and newest instant of what can be drawn."""
        whole = self._whole
        newest = _known(whole.series.last, whole.bursts.last, 0)
        oldest = _known(whole.spans.first, whole.series.first, whole.bursts.first, newest)
        return oldest, max(newest, oldest + 1)

    @property
    def series_ns(self) -> int:
        """How long the series are: samples and exact spans, without profile bursts."""
        first, last = self._whole.series.first, self._whole.series.last
        return 0 if first is None or last is None else last - first

    @property
    def late_ns(self) -> int:
        """How long after the beginning of the stream its series begin; 0 where either is not known."""
        first = self._whole.series.first
        return 0 if first is None or self.hello is None else max(first - self.hello.mono_ns, 0)

    def records(
        self, start_ns: int | None = None, end_ns: int | None = None, *, defined: bool = True
    ) -> Iterator[AnyRecord]:
        """Records of a stretch as a stream that stands alone: the facts as of its beginning, then what touches it.

        `defined` puts each definition before its first use.
        """
        written: set[int] = set()
        told: set[bytes] = set()
        before = -1
        for number, chunk in enumerate(self.chunks):
            if not chunk.touches(start_ns, end_ns):
                continue
            if number != before + 1:
                yield from _news(self._change(chunk.facts), told)
            before = number
            for record in _news(self._change(chunk.read()), told):
                if not _touches(record, start_ns, end_ns):
                    continue
                if defined:
                    yield from self.definitions.needed(record, written)
                yield record
        if before < 0:
            yield from self._change(self._before)

    def stretch(self, edges: tuple[int, int] | None, *, defined: bool = True) -> Iterator[AnyRecord]:
        """Exactly what lies between two instants, cut at them; with None everything."""
        if edges is None:
            return self.records(defined=defined)
        return clip(self.records(*edges, defined=defined), *edges)

    def change(self, change: Callable[[Iterable[AnyRecord]], list[AnyRecord]]) -> None:
        """Have every record go through this from now on."""
        self._change = change
        definitions, self.definitions = self.definitions, Definitions()
        for record in change(definitions.all()):
            if isinstance(record, FrameDef | StackDef):
                self.definitions.add(record)

    def size(self, start_ns: int, end_ns: int) -> int:
        """Bytes that have to be read for a stretch."""
        return sum(chunk.size for chunk in self.chunks if chunk.touches(start_ns, end_ns))


def _known(*values: int | None) -> int:
    return next((value for value in values if value is not None), 0)


def _news(records: Iterable[AnyRecord], told: set[bytes]) -> Iterator[AnyRecord]:
    """Without definitions, and without events that were told before."""
    for record in records:
        if isinstance(record, FrameDef | StackDef):
            continue
        if isinstance(record, EVENTS):
            frame = encode(record)
            if frame in told:
                continue
            told.add(frame)
        yield record


def _touches(record: AnyRecord, start_ns: int | None, end_ns: int | None) -> bool:
    extent = extent_of(record)
    if extent is None or isinstance(record, Hello | Server):
        return True
    if end_ns is not None and extent[0] > end_ns:
        return False
    return start_ns is None or extent[1] >= start_ns or not is_bulk(record)
