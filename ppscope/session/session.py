"""A session: one stream in, view values out. The same for a live collector and for a recording."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ppscope.collect.client import RecordStream
from ppscope.diagnose.occupancy import occupancy
from ppscope.diagnose.running import enough, places
from ppscope.records import (
    AnyCommand,
    RankKey,
)
from ppscope.session.burst import make_offer
from ppscope.session.dumping import Dumping
from ppscope.session.evidence import active
from ppscope.session.exact import gpu_lane, host_lane, spans
from ppscope.session.header import build_header
from ppscope.session.intake import Intake
from ppscope.session.stages import StageRows, rank_times
from ppscope.session.trees import thread_stacks
from ppscope.views import BurstOffer, Finding, Lane, Occupancy, PhaseStyle, Screen, Span, ThreadStacks

_NOTES_KEPT = 50
_OCCUPANCY_NS = 60_000_000_000
_SECOND = 1_000_000_000


class Session(Intake):
    """Answers the screen from what its stream has said; see ppscope.feed.Feed.

    `dump_cores` bounds the CPU of bursts of dumps; None leaves it to the collector.
    """

    def __init__(
        self,
        stream: RecordStream,
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        dump_cores: float | None = None,
    ) -> None:
        super().__init__(stream, clock)
        self._rows = StageRows(self._table.styles, self.gpus, self.load)
        self._rows.trace_busy = self._trace_busy
        self._dumping = Dumping(dump_cores)
        self._noted_ns = 0

    def poll(self) -> bool:
        """Take in what has arrived; True when anything did."""
        records = self._stream.drain()
        if records:
            self._heard_ns = self._clock()
        for record in records:
            self._take(record)
            self._note_requests()
            if self._judging.upto(self, self._newest_ns):
                self._ask_for_dumps(self._newest_ns)
        return bool(records)

    def _note_requests(self) -> None:
        """Note, about once a second of the stream's time, whether there are requests enough for every stage of every replica."""
        now = self._newest_ns
        if now - self._noted_ns < _SECOND or self.server is None:
            return
        self._noted_ns = now
        slots = self.settings.slots(self.server)
        if slots is None:
            return
        interval, occupied = self.settings.batch_interval, self.occupied(self.occupancy(now))
        load = self.load.view(now, None, occupied, interval)
        at_least = self.load.estimate(now, occupied, interval).at_least
        self.requests.note(now, enough(load.running, at_least, places(slots, self.server)))

    def _ask_for_dumps(self, now_ns: int) -> None:
        if self.live and self.server is not None and self.end is None:
            samples, active_now = self.occupancy(now_ns).samples, self.active(now_ns)
            for command in self._dumping.wanted(self.server, samples, active_now, now_ns):
                self._stream.send(command)

    def now_ns(self) -> int:
        """What the screen calls now: a little behind the node's present, so that sampled cells are whole when drawn."""
        if not self.live or self.end is not None:
            return self._newest_ns
        now = self._clock() + self._clock_offset_ns
        return now - self._lag.behind_ns(now)

    def look_at(self, start_ns: int, end_ns: int) -> None:
        """Figures are the present's, whatever the lanes show."""

    def silent_ns(self) -> int | None:
        """For how long nothing has come from a live collector; None before its first record and for recordings."""
        return self._clock() - self._heard_ns if self.live and self._heard_ns is not None else None

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
        active = self.active(self.now_ns())
        stages = self._rows.build(
            self.states.values(),
            server.device if server else None,
            bool(server and server.emulated),
            self.now_ns(),
            active,
        )
        placed = [(state.rank.key, state.rank.gpu.index if state.rank.gpu else None) for state in self.states.values()]
        occupied = self.occupancy()
        batches = self.load.recent_batches(now)
        return Screen(
            now_ns=self.now_ns(),
            header=build_header(self, now, active),
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

    def burst(self) -> BurstOffer | None:
        """What a profile burst would do here; None where nobody could be asked for one."""
        return make_offer(self.server, self.bursts.active) if self.live and self.end is None else None

    def burst_findings(self, now_ns: int) -> tuple[Finding, ...]:
        """What a burst of the last minute proves, exact."""
        return self.bursts.findings(now_ns, self.decode_graphs_off(now_ns))

    def _trace_busy(self, dp: int, pp: int, now_ns: int) -> float | None:
        return self.bursts.busy(pp, now_ns, dp)

    def stage_busy(
        self, dp: int, pp: int, host_forward: float | None, device: str | None, now_ns: int, active: bool | None
    ) -> tuple[float | None, str | None]:
        """Busy share of a replica's stage with its source; see StageRows.busy."""
        members = [state for state in self.states.values() if (state.rank.key.dp, state.rank.key.pp) == (dp, pp)]
        return self._rows.busy(dp, pp, host_forward, device, now_ns, members, active)

    def occupancy(self, now_ns: int | None = None) -> Occupancy:
        """Micro-batch slots in use over the minute before an instant (None: now): by the launches of each round, else by dumps.

        While there are requests enough to fill the slots, of that minute those seconds count in which there were.
        """
        until = self.now_ns() if now_ns is None else now_ns
        since = until - _OCCUPANCY_NS
        counted = [
            state.exact.launches(since, until, self.requests.tells)
            for state in self.states.values()
            if state.exact is not None
        ]
        launches, rounds = sum(pair[0] for pair in counted), sum(pair[1] for pair in counted)
        if rounds:
            return Occupancy(self.settings.slots(self.server), launches / rounds, launches, "exact")
        passes_per_s = self.load.passes_per_s(until, self.settings.batch_interval)
        return occupancy(self.slots_seen(until), self.settings.slots(self.server), passes_per_s)

    def occupied(self, found: Occupancy) -> float | None:
        """Slots in use over all data-parallel replicas, each of which has its own."""
        replicas = max(self.server.dp_size, 1) if self.server is not None else 1
        return None if found.mean is None else found.mean * replicas

    def slots_seen(self, now_ns: int) -> list[tuple[int, int]]:
        """(instant, slot) of the dumps over the minute before an instant that saw a slot at work and count; see `occupancy`."""
        return [
            (sample.at_ns, slot)
            for state in self.states.values()
            for sample in state.loops_since(now_ns - _OCCUPANCY_NS)
            if self.requests.tells(sample.at_ns // _SECOND) and self.interned.meaning(sample.stack).needs_batch
            if (slot := self.interned.micro_batch(sample)) is not None
        ]

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

    def stacks(self, rank: RankKey, seconds: float, until_ns: int | None = None) -> list[ThreadStacks]:
        """Stack trees of a rank's threads over the last seconds seen, or seen before an instant."""
        state = self.states.get(rank)
        if state is None or state.newest_ns is None:
            return []
        end_ns = state.newest_ns if until_ns is None else min(until_ns, state.newest_ns)
        return thread_stacks(state, end_ns - int(seconds * 1e9), until_ns, self.interned)

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
