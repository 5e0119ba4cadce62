"""A session: one stream in, view values out. The same for a live collector and for a recording."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ppscope.collect.client import RecordStream
from ppscope.diagnose.occupancy import occupancy
from ppscope.records import (
    AnyCommand,
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
from ppscope.session.burst import BurstState, make_offer
from ppscope.session.dumping import Dumping
from ppscope.session.evidence import active
from ppscope.session.exact import gpu_lane, host_lane, spans
from ppscope.session.gpus import Gpus
from ppscope.session.header import build_header
from ppscope.session.interned import Interned
from ppscope.session.judging import Judging
from ppscope.session.lag import Lag
from ppscope.session.load import LoadState
from ppscope.session.ranks import RankState
from ppscope.session.rules import RulesState
from ppscope.session.settings import SettingsState
from ppscope.session.stages import StageRows, rank_times
from ppscope.session.trees import thread_stacks
from ppscope.session.troubles import clock_step_ns
from ppscope.target.phases import PhaseTable
from ppscope.views import BurstOffer, Finding, Lane, Occupancy, PhaseStyle, Screen, Span, ThreadStacks

_NOTES_KEPT = 50
_OCCUPANCY_NS = 60_000_000_000


class Session:
    """Holds what a stream has said and answers the screen; see ppscope.feed.Feed."""

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
        self._rows = StageRows(self._table.styles, self.gpus, self.load)
        self.bursts = BurstState(self._table.styles)
        self._rows.trace_busy = self._trace_busy
        self._lag = Lag()
        self.hello: Hello | None = None
        self.server: Server | None = None
        self.states: dict[RankKey, RankState] = {}
        self.sources: dict[tuple[str, RankKey | None], SourceStatus] = {}
        self.settings = SettingsState()
        self.rules = RulesState()
        self.started_ns = 0
        self._judging = Judging()
        self._dumping = Dumping()
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

    # -- records in

    def poll(self) -> bool:
        """Take in what has arrived; True when anything did."""
        records = self._stream.drain()
        if records:
            self._heard_ns = self._clock()
        for record in records:
            self._take(record)
            if self._judging.upto(self, self._newest_ns):
                self._ask_for_dumps(self._newest_ns)
        return bool(records)

    def _take(self, record: AnyRecord) -> None:
        try:
            self._handlers[type(record)](record)
        except Exception as error:  # noqa: BLE001  a damaged record, or one of another version, is told and ends nothing
            self.damaged += 1
            self.damage = f"{type(record).__name__}: {type(error).__name__}: {error}"

    def _ask_for_dumps(self, now_ns: int) -> None:
        if self.live and self.server is not None and self.end is None:
            samples, active_now = self.occupancy(now_ns).samples, self.active(now_ns)
            for command in self._dumping.wanted(self.server, samples, active_now, now_ns):
                self._stream.send(command)

    def _on_hello(self, record: Hello) -> None:
        self.hello = record
        self._clock_offset_ns = record.mono_ns - self._clock()
        self._newest_ns = self.started_ns = record.mono_ns
        self._wall_offset_ns = record.wall_ns - record.mono_ns

    def _on_server(self, record: Server) -> None:
        if self.server is None or self.server.launcher_pid != record.launcher_pid:
            self.states.clear()
            self.sources.clear()
            self.started_ns = self._newest_ns
            self.rules = RulesState()
            self.bursts = BurstState(self._table.styles)
            self._judging.reset()
            self.gone = None
        self.server = record
        for rank in record.ranks:
            state = self.states.get(rank.key)
            if state is None or state.rank.pid != rank.pid:
                self.states[rank.key] = RankState(rank, self._table.styles)
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
        self.settings.notes.append(record)

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

    def _seen(self, at_ns: int) -> None:
        self._newest_ns = max(self._newest_ns, at_ns)

    # -- values out

    def now_ns(self) -> int:
        """What the screen calls now: a little behind the node's present, so that sampled cells are whole when drawn."""
        if not self.live or self.end is not None:
            return self._newest_ns
        now = self._clock() + self._clock_offset_ns
        return now - self._lag.behind_ns(now)

    def silent_ns(self) -> int | None:
        """For how long nothing has come from a live collector; None before its first record and for recordings."""
        return self._clock() - self._heard_ns if self.live and self._heard_ns is not None else None

    def present_ns(self) -> int:
        """The node's present, or the end of what was seen."""
        return self._newest_ns if not self.live or self.end is not None else self._clock() + self._clock_offset_ns

    def extent(self) -> tuple[int, int]:
        """Oldest and newest instant kept."""
        extents = [extent for state in self.states.values() for extent in state.extents()]
        now = self.now_ns()
        if (burst := self.bursts.extent()) is not None:
            extents.append(burst)
        newest = max(now, *(extent[1] for extent in extents), now)
        return min(newest, *(extent[0] for extent in extents), newest if extents else now), newest

    def phases(self) -> tuple[PhaseStyle, ...]:
        """The phase styles that phase indices name."""
        return self._table.styles

    def screen(self) -> Screen:
        """Everything the main screen draws now."""
        now = self.present_ns()
        server = self.server
        stages = self._rows.build(
            self.states.values(), server.device if server else None, bool(server and server.emulated), self.now_ns()
        )
        placed = [(state.rank.key, state.rank.gpu.index if state.rank.gpu else None) for state in self.states.values()]
        occupied = self.occupancy()
        batches = self.load.recent_batches(now)
        return Screen(
            now_ns=self.now_ns(),
            header=build_header(self, now),
            stages=stages,
            occupancy=occupied,
            findings=self._judging.findings,
            gpus=self.gpus.rows(now, placed),
            settings=self.settings.rows(server, occupied, batches, now),
            launches=self.bursts.launches,
            burst=self.bursts.progress(now),
        )

    def other_share(self) -> float | None:
        """Share of the last seconds' stacks that no phase rule names, over all ranks; None while nothing was seen."""
        other, now = self._table.other, self.now_ns()
        times = [rank_times(state, now)[0] for state in self.states.values()]
        seen = sum(sum(rank.values()) for rank in times)
        return sum(rank.get(other, 0) for rank in times) / seen if seen else None

    def active(self, now_ns: int) -> bool | None:
        """Whether a forward pass was seen in the last seconds before an instant; None where no stacks were."""
        return active(self.states.values(), self._table.styles, now_ns)

    def provenance(self, now_ns: int) -> str:
        """`exact` while every living rank is timed by the probe, else `sampled`."""
        alive = [state for state in self.states.values() if state.alive]
        return "exact" if alive and all(rank_times(state, now_ns)[1] for state in alive) else "sampled"

    def decode_graphs_off(self, now_ns: int) -> bool:
        """Whether decode graphs are switched off, by what the server resolved, else by its command line."""
        decode, _ = self.settings.graphs(self.load.recent_batches(now_ns), now_ns)
        return (decode.resolved or decode.requested) == "off"

    def burst(self) -> BurstOffer | None:
        """What a profile burst would do here; None where nobody could be asked for one."""
        return make_offer(self.server, self.bursts.active) if self.live and self.end is None else None

    def burst_findings(self, now_ns: int) -> tuple[Finding, ...]:
        """What a burst of the last minute proves, exact."""
        return self.bursts.findings(now_ns, self.decode_graphs_off(now_ns))

    def _trace_busy(self, pp: int, now_ns: int) -> float | None:
        return self.bursts.busy(pp, now_ns)

    def idle(self) -> bool:
        """Whether stacks were seen of late and no forward pass among them."""
        return self.active(self.now_ns()) is False

    def stage_busy(
        self, pp: int, host_forward: float | None, device: str | None, now_ns: int
    ) -> tuple[float | None, str | None]:
        """Busy share of a stage with its source; see StageRows.busy."""
        members = [state for state in self.states.values() if state.rank.key.pp == pp]
        return self._rows.busy(pp, host_forward, device, now_ns, members)

    def occupancy(self, now_ns: int | None = None) -> Occupancy:
        """Micro-batch slots in use over the minute before an instant (None: now): by the launches of each round, else by dumps."""
        until = self.now_ns() if now_ns is None else now_ns
        since = until - _OCCUPANCY_NS
        counted = [state.exact.launches(since, until) for state in self.states.values() if state.exact is not None]
        launches, rounds = sum(pair[0] for pair in counted), sum(pair[1] for pair in counted)
        if rounds:
            return Occupancy(self.settings.slots(self.server), launches / rounds, launches, "exact")
        seen = [
            (sample.at_ns, slot)
            for state in self.states.values()
            for sample in state.loops_since(since)
            if self.interned.meaning(sample.stack).needs_batch
            if (slot := self.interned.micro_batch(sample)) is not None
        ]
        return occupancy(seen, self.settings.slots(self.server))

    def lanes(self, start_ns: int, end_ns: int, columns: int, ranks: Sequence[RankKey] | None = None) -> list[Lane]:
        """Gantt rows; see ppscope.feed.Feed."""
        keys = ranks if ranks is not None else sorted(key for key in self.states if key.tp == 0)
        rows: list[Lane] = []
        for key in keys:
            if (state := self.states.get(key)) is not None:
                rows.append(host_lane(key, state.exact, state.timeline, start_ns, end_ns, columns))
                on_gpu = gpu_lane(key, state.exact, start_ns, end_ns, columns)
                rows += [on_gpu] if on_gpu is not None else []
        return self.bursts.overlay(rows, start_ns, end_ns, columns)

    def spans(self, rank: RankKey, start_ns: int, end_ns: int) -> list[Span]:
        """Single spans of a rank's main thread, in order."""
        state = self.states.get(rank)
        rest = spans(state.exact, state.timeline, start_ns, end_ns) if state else []
        return self.bursts.spans(rank, start_ns, end_ns, rest)

    def stacks(self, rank: RankKey, seconds: float) -> list[ThreadStacks]:
        """Stack trees of a rank's threads over the last seconds."""
        state = self.states.get(rank)
        if state is None or state.newest_ns is None:
            return []
        return thread_stacks(state, state.newest_ns - int(seconds * 1e9), self.interned)

    def stack_text(self, stack: int) -> list[tuple[str, str, int | None]]:
        """(function, file, line) of a stack, outermost first."""
        return self.interned.frames(stack)

    def send(self, command: AnyCommand) -> None:
        """Pass a command to the collector."""
        self._stream.send(command)

    def ended(self) -> str | None:
        """Why the stream ended, None while it runs."""
        return None if self.end is None else self.end.message or self.end.reason

    def close(self) -> None:
        """End the collector."""
        self._stream.close()


_HANDLERS: dict[type, str] = {
    Hello: "_on_hello", Clock: "_on_clock", Server: "_on_server", FrameDef: "_on_definition", StackDef: "_on_definition",
    StackSpans: "_on_spans", LoopSample: "_on_loop", HostSamples: "_on_host", RankExit: "_on_exit", ServerGone: "_on_gone",
    GpuDevice: "_on_gpu", GpuSample: "_on_gpu_sample", LoadSample: "_on_load", BatchLog: "_on_batch", LogNote: "_on_log_note",
    Metric: "_on_metric", Settings: "_on_settings", SourceStatus: "_on_source", Cost: "_on_cost", Dropped: "_on_dropped",
    Note: "_on_note", End: "_on_end", Rules: "_on_rules", ProbeSpans: "_on_probe",
    BurstStatus: "_on_burst", BurstRank: "_on_burst_rank", BurstReport: "_on_burst_report",
}  # fmt: skip
