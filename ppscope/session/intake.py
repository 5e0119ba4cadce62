"""What a stream has said so far: each record goes to the part that keeps it."""

from __future__ import annotations

import time
from collections.abc import Callable

from ppscope.collect.client import RecordStream
from ppscope.records import (
    AnyRecord,
    BatchLog,
    BurstRank,
    BurstReport,
    BurstStatus,
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
    Rules,
    Server,
    ServerGone,
    Settings,
    SourceStatus,
    StackDef,
    StackSpans,
)
from ppscope.session.burst import BurstState
from ppscope.session.enough import Enough
from ppscope.session.gpus import Gpus
from ppscope.session.interned import Interned
from ppscope.session.judging import Judging
from ppscope.session.lag import Lag
from ppscope.session.load import LoadState
from ppscope.session.ranks import RankState
from ppscope.session.rules import RulesState
from ppscope.session.settings import SettingsState
from ppscope.session.troubles import clock_step_ns
from ppscope.target.phases import PhaseTable

_NOTES_KEPT = 50
_OCCUPANCY_NS = 60_000_000_000


class Intake:
    """Takes in a stream, record by record; a damaged one is counted and ends nothing."""

    keep_all = False
    """Whether timelines keep all they were given, and not the last ten minutes."""

    def __init__(self, stream: RecordStream, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.live = stream.live
        self._stream = stream
        self._clock = clock
        self._clock_offset_ns = 0
        self._newest_ns = 0
        self._table = PhaseTable.load()
        self.interned = Interned(self._table)
        self.gpus = Gpus()
        self.load = LoadState()
        self.requests = Enough()
        self.bursts = BurstState(self._table.styles)
        self._lag = Lag()
        self.hello: Hello | None = None
        self.server: Server | None = None
        self.states: dict[RankKey, RankState] = {}
        self.sources: dict[tuple[str, RankKey | None], SourceStatus] = {}
        self.settings = SettingsState()
        self.rules = RulesState()
        self.started_ns = 0
        self._judging = Judging()
        self.notes: list[Note] = []
        self.cost: Cost | None = None
        self.dropped = 0
        self.dropped_ns = 0
        self.damaged = 0
        self.damage = ""
        self.clock_step_ns = 0
        self.clock_stepped_ns = 0
        self._wall_offset_ns: int | None = None
        self._heard_ns: int | None = None
        self.gone: ServerGone | None = None
        self.end: End | None = None
        self._handlers: dict[type, Callable[[AnyRecord], None]] = {
            kind: getattr(self, name) for kind, name in _HANDLERS.items()
        }

    def _take(self, record: AnyRecord) -> None:
        try:
            self._handlers[type(record)](record)
        except Exception as error:  # noqa: BLE001  a damaged record, or one of another version, is told and ends nothing
            self.damaged += 1
            self.damage = f"{type(record).__name__}: {type(error).__name__}: {error}"

    def _on_hello(self, record: Hello) -> None:
        self.hello = record
        self._clock_offset_ns = record.mono_ns - self._clock()
        self._newest_ns = self.started_ns = self.load.since_ns = record.mono_ns
        self._wall_offset_ns = record.wall_ns - record.mono_ns

    def _on_server(self, record: Server) -> None:
        if self.server is None or self.server.launcher_pid != record.launcher_pid:
            self.states.clear()
            self.sources.clear()
            if self.server is not None:
                self.load.forget()
                self.requests = Enough()
                self.settings.forget()
            self.started_ns = self.load.since_ns = self._newest_ns
            self.rules = RulesState()
            self.bursts = BurstState(self._table.styles)
            self._judging.reset()
        if record.state != "gone":
            self.gone = None
        self.server = record
        for rank in record.ranks:
            state = self.states.get(rank.key)
            if state is None or state.rank.pid != rank.pid:
                self.states[rank.key] = RankState(rank, self._table.styles, self.keep_all)
            else:
                state.rank = rank

    def _on_spans(self, record: StackSpans) -> None:
        state = self.states.get(record.rank)
        if state is not None:
            state.add_spans(record, self.interned)
            self._seen(record.end_ns)
            self._lag.note(
                self._clock() + self._clock_offset_ns, (s.seen_ns() for s in self.states.values() if s.alive)
            )

    def _on_probe(self, record: ProbeSpans) -> None:
        state = self.states.get(record.rank)
        if state is not None:
            # Before it is taken in: so old is a rank's newest data when the next arrives.
            now = self._clock() + self._clock_offset_ns
            self._lag.note(now, (s.seen_ns() for s in self.states.values() if s.alive))
            state.add_probe(record)
            self._seen(record.ends_ns[-1])

    def _on_loop(self, record: LoopSample) -> None:
        if record.rank in self.states:
            self.states[record.rank].add_loop(record, self.interned)

    def _on_host(self, record: HostSamples) -> None:
        if record.rank in self.states:
            self.states[record.rank].add_host(record)
        if record.at_ns:
            self._seen(record.at_ns[-1])

    def _on_exit(self, record: RankExit) -> None:
        state = self.states.get(record.rank)
        if state is not None and state.rank.pid == record.pid:
            state.add_exit(record)
            self.bursts.add_exit(record)

    def _on_gone(self, record: ServerGone) -> None:
        self.gone = record

    def _on_gpu_sample(self, record: GpuSample) -> None:
        self.gpus.add_sample(record)
        self._seen(record.at_ns)

    def _on_log_note(self, record: LogNote) -> None:
        self.settings.add_note(record)

    def _on_note(self, record: Note) -> None:
        self.notes.append(record)
        del self.notes[:-_NOTES_KEPT]

    def _on_settings(self, record: Settings) -> None:
        self.settings.add(record)

    def _on_rules(self, record: Rules) -> None:
        self.rules.add(record)

    def _on_burst(self, record: BurstStatus) -> None:
        self.bursts.add_status(record)

    def _on_burst_rank(self, record: BurstRank) -> None:
        self.bursts.add_rank(record, self.decode_graphs_off(self.present_ns()))

    def _on_burst_report(self, record: BurstReport) -> None:
        self.bursts.add_report(record)
        if not self.live:
            self._seen(record.end_ns or record.at_ns)

    def _on_source(self, record: SourceStatus) -> None:
        self.sources[(record.name, record.rank)] = record

    def _on_cost(self, record: Cost) -> None:
        self.cost = record
        self._seen(record.at_ns)

    def _on_dropped(self, record: Dropped) -> None:
        self.dropped += record.records
        self.dropped_ns = record.at_ns

    def _on_end(self, record: End) -> None:
        self.end = record

    def _on_definition(self, record: FrameDef | StackDef) -> None:
        self.interned.add(record)

    def _on_gpu(self, record: GpuDevice) -> None:
        self.gpus.add_device(record)

    def _on_load(self, record: LoadSample) -> None:
        self.load.add(record)

    def _on_batch(self, record: BatchLog) -> None:
        self.load.add_batch(record)

    def _on_metric(self, record: Metric) -> None:
        self.load.add_metric(record)
        self.settings.add_metric(record)

    def _on_clock(self, record: Clock) -> None:
        step = clock_step_ns(self._wall_offset_ns, record.mono_ns, record.wall_ns) if self._wall_offset_ns else None
        if step is not None:
            self.clock_step_ns, self.clock_stepped_ns = step, record.mono_ns
            self._wall_offset_ns = record.wall_ns - record.mono_ns
        self._seen(record.mono_ns)

    def present_ns(self) -> int:
        """The node's present, or the end of what was seen."""
        return self._newest_ns if not self.live or self.end is not None else self._clock() + self._clock_offset_ns

    def decode_graphs_off(self, now_ns: int) -> bool:
        """Whether decode graphs are switched off, by what the server resolved, else by its command line."""
        decode, _ = self.settings.graphs(self.load.recent_batches(now_ns), now_ns)
        return (decode.resolved or decode.requested) == "off"

    def _seen(self, at_ns: int) -> None:
        self._newest_ns = max(self._newest_ns, at_ns)


_HANDLERS: dict[type, str] = {
    Hello: "_on_hello", Clock: "_on_clock", Server: "_on_server", FrameDef: "_on_definition", StackDef: "_on_definition",
    StackSpans: "_on_spans", LoopSample: "_on_loop", HostSamples: "_on_host", RankExit: "_on_exit", ServerGone: "_on_gone",
    GpuDevice: "_on_gpu", GpuSample: "_on_gpu_sample", LoadSample: "_on_load", BatchLog: "_on_batch", LogNote: "_on_log_note",
    Metric: "_on_metric", Settings: "_on_settings", SourceStatus: "_on_source", Cost: "_on_cost", Dropped: "_on_dropped",
    Note: "_on_note", End: "_on_end", Rules: "_on_rules", ProbeSpans: "_on_probe",
    BurstStatus: "_on_burst", BurstRank: "_on_burst_rank", BurstReport: "_on_burst_report",
}  # fmt: skip
