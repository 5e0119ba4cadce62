"""What must be kept of a stream so that any part of it stands alone: definitions, the last word on each fact, recent bulk."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain

from ppscope.collect.client import RecordStream
from ppscope.records import (
    AnyCommand,
    AnyRecord,
    BatchLog,
    BurstRank,
    BurstReport,
    Clock,
    Cost,
    Dropped,
    End,
    FrameDef,
    GpuDevice,
    GpuSample,
    Hello,
    HostSamples,
    LoadSample,
    LogNote,
    LoopSample,
    Metric,
    Note,
    ProbeSpans,
    RankExit,
    RankKey,
    Server,
    ServerGone,
    Settings,
    SourceStatus,
    StackDef,
    StackSpans,
)

KEEP_NS = 60_000_000_000
"""A snapshot out of the view shows the last minute."""
_NOTES_KEPT = 400
_BURSTS_KEPT = 4
_BULK = (StackSpans, ProbeSpans, LoopSample, HostSamples, GpuSample, LoadSample, BatchLog, Metric, Cost)
"""Records that are one of a series: kept for a time. Everything else is a fact and stays."""
POINTS = (GpuSample, LoadSample, BatchLog, Metric, Cost)
"""Records of a series that are nothing but figures of one instant: most of a recording."""
EVENTS = (LogNote, Note, RankExit, ServerGone, Dropped)
"""Facts that add to one another; of all others the last word counts."""


def time_of(record: AnyRecord) -> int | None:
    """The newest instant that a record speaks of; None for one without a time."""
    at: object = getattr(record, "at_ns", None)
    if type(at) is int and at:
        return at  # most of any stream
    if isinstance(record, StackSpans):
        return record.end_ns
    if isinstance(record, HostSamples):
        return record.at_ns[-1] if record.at_ns else None
    if isinstance(record, ProbeSpans):
        return record.ends_ns[-1] if record.ends_ns else None
    if isinstance(record, Hello | Clock):
        return record.mono_ns
    if isinstance(record, FrameDef | StackDef | GpuDevice):
        return None
    return getattr(record, "end_ns", None)


def extent_of(record: AnyRecord) -> tuple[int, int] | None:
    """The oldest and the newest instant that a record speaks of; None for one without a time."""
    newest = time_of(record)
    if newest is None:
        return None
    if isinstance(record, StackSpans | BurstRank):
        return record.start_ns, newest
    if isinstance(record, HostSamples):
        return record.at_ns[0], newest
    if isinstance(record, ProbeSpans):
        return min(record.starts_ns), newest  # a caller's row comes after those that it called
    return newest, newest


def is_bulk(record: AnyRecord) -> bool:
    """Whether a record is one of a series, of which only the recent ones matter."""
    return isinstance(record, _BULK)


def in_time_order(records: Iterable[AnyRecord]) -> list[AnyRecord]:
    """Facts and definitions first, then series and events by their time: the order in which a session takes them in."""
    first: list[AnyRecord] = []
    timed: list[AnyRecord] = []
    for record in records:
        (timed if isinstance(record, (*_BULK, *EVENTS)) else first).append(record)
    return first + sorted(timed, key=lambda record: time_of(record) or 0)


class Definitions:
    """Frames and stacks by id, and which of them a record needs."""

    def __init__(self) -> None:
        self._frames: dict[int, FrameDef] = {}
        self._stacks: dict[int, StackDef] = {}

    def add(self, record: FrameDef | StackDef) -> None:
        """Take in a definition."""
        if isinstance(record, FrameDef):
            self._frames[record.id] = record
        else:
            self._stacks[record.id] = record

    def all(self) -> Iterator[FrameDef | StackDef]:
        """Every definition."""
        yield from self._frames.values()
        yield from self._stacks.values()

    def needed(self, record: AnyRecord, written: set[int]) -> Iterator[FrameDef | StackDef]:
        """Definitions that a record refers to and that are not in `written` yet, in an order that stands; adds them to it.

        Frames are in `written` under -1 - id.
        """
        stacks: Iterable[int] = ()
        if isinstance(record, StackSpans):
            stacks = record.stacks
        elif isinstance(record, LoopSample):
            stacks = (record.stack,)
        for stack in stacks:
            if stack in written or stack not in self._stacks:
                continue
            written.add(stack)
            for frame in self._stacks[stack].frames:
                if -1 - frame not in written and frame in self._frames:
                    written.add(-1 - frame)
                    yield self._frames[frame]
            yield self._stacks[stack]


class Facts:
    """The last word on everything that is not one of a series."""

    def __init__(self) -> None:
        self.hello: Hello | None = None
        self.server: Server | None = None
        self._last: dict[tuple[object, ...], AnyRecord] = {}
        self._bursts: dict[int, dict[RankKey | None, AnyRecord]] = {}
        self._told: deque[AnyRecord] = deque(maxlen=_NOTES_KEPT)

    def add(self, record: AnyRecord) -> None:
        """Take in a fact."""
        if isinstance(record, Hello):
            self.hello = record
        elif isinstance(record, Server):
            if self.server is not None and self.server.launcher_pid != record.launcher_pid:
                self._last.clear()
                self._bursts.clear()
                self._told.clear()
            self.server = record
        elif isinstance(record, Settings):
            self._last[(Settings, record.origin)] = record
        elif isinstance(record, SourceStatus):
            self._last[(SourceStatus, record.name, record.rank)] = record
        elif isinstance(record, GpuDevice):
            self._last[(GpuDevice, record.index)] = record
        elif isinstance(record, BurstRank | BurstReport):
            self._bursts.setdefault(record.burst, {})[getattr(record, "rank", None)] = record
            while len(self._bursts) > _BURSTS_KEPT:
                del self._bursts[min(self._bursts)]
        elif isinstance(record, EVENTS):
            self._told.append(record)
        elif not isinstance(record, End):
            self._last[(type(record),)] = record

    def records(self) -> list[AnyRecord]:
        """Facts in an order that a reader can take in."""
        first = [record for record in (self.hello, self.server) if record is not None]
        bursts = [record for _, ranks in sorted(self._bursts.items()) for record in ranks.values()]
        return [*first, *self._last.values(), *bursts, *self._told]


class RecordWindow:
    """The last `keep_ns` of a stream (None: all of it), ready to be written or looked at on its own."""

    def __init__(self, keep_ns: int | None = None) -> None:
        self._keep_ns = keep_ns
        self.definitions = Definitions()
        self.facts = Facts()
        self._bulk: deque[tuple[int, AnyRecord]] = deque()
        self._newest_ns = 0

    def add(self, records: Iterable[AnyRecord]) -> None:
        """Take in records in the order of the stream."""
        for record in records:
            if isinstance(record, FrameDef | StackDef):
                self.definitions.add(record)
            elif is_bulk(record):
                self._add_bulk(record)
            else:
                if isinstance(record, Server) and self.facts.server is not None:
                    changed = self.facts.server.launcher_pid != record.launcher_pid
                    if changed:
                        self._bulk.clear()
                self.facts.add(record)

    def _add_bulk(self, record: AnyRecord) -> None:
        at_ns = time_of(record) or self._newest_ns
        self._newest_ns = max(self._newest_ns, at_ns)
        self._bulk.append((at_ns, record))
        if self._keep_ns is not None:
            while self._bulk and self._bulk[0][0] < self._newest_ns - self._keep_ns:
                self._bulk.popleft()

    def records(self) -> list[AnyRecord]:
        """A stream that stands alone: facts, then the definitions that are used, then the series in order."""
        written: set[int] = set()
        bulk = [record for _, record in self._bulk]
        used = chain.from_iterable(self.definitions.needed(record, written) for record in bulk)
        return in_time_order([*self.facts.records(), *used, *bulk])


class KeptStream:
    """A stream as it is, of which the last `keep_ns` are kept besides for whoever wants to write them."""

    def __init__(self, stream: RecordStream, keep_ns: int | None) -> None:
        self.live = stream.live
        self.window = RecordWindow(keep_ns)
        self._stream = stream

    def drain(self) -> list[AnyRecord]:
        """Records that have arrived since the last call."""
        records = self._stream.drain()
        self.window.add(records)
        return records

    def wait(self, timeout_s: float) -> bool:
        """Wait until something has arrived."""
        return self._stream.wait(timeout_s)

    def send(self, command: AnyCommand) -> None:
        """Pass a command to the collector."""
        self._stream.send(command)

    def close(self) -> None:
        """End the collector."""
        self._stream.close()
