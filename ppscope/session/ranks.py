"""What is kept of one rank: its timeline, its threads' recent stacks, its host figures, whether it lives."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ppscope.records import HostSamples, LoopSample, Rank, RankExit, StackSpans
from ppscope.session.interned import Interned
from ppscope.timeline import RankTimeline
from ppscope.views import PhaseStyle

_STACK_KEEP_NS = 60 * 1_000_000_000
_HOST_KEEP_NS = 10 * 1_000_000_000
_LOOP_SAMPLES = 4096

Sampled = tuple[int, int, int]
"""(start_ns, end_ns, stack)"""


class RankState:
    """Everything seen of one scheduler process."""

    def __init__(self, rank: Rank, styles: Sequence[PhaseStyle]) -> None:
        self.rank = rank
        self.timeline = RankTimeline(styles)
        self.threads: dict[int, deque[Sampled]] = {}
        self.thread_names: dict[int, str] = {}
        self.loop_samples: deque[LoopSample] = deque(maxlen=_LOOP_SAMPLES)
        self.newest_ns: int | None = None
        self.exit_reason: str | None = None
        self.stopped = False
        self.threads_count: int | None = rank.threads
        self._host: deque[tuple[int, int]] = deque()
        self._pending_loops: list[LoopSample] = []

    @property
    def alive(self) -> bool:
        """False once the process was seen to be gone."""
        return self.exit_reason is None

    def add_spans(self, record: StackSpans, interned: Interned) -> None:
        """Take in one window of one thread; the main thread's goes to the timeline as well."""
        kept = self.threads.setdefault(record.tid, deque())
        self.thread_names[record.tid] = record.thread
        newest = kept[-1][1] if kept else record.start_ns
        main = self._is_main(record)
        for start, end, stack in zip(record.starts_ns, record.ends_ns, record.stacks, strict=False):
            start = max(start, newest)  # noqa: PLW2901  windows overlap by design
            if end <= start:
                continue
            kept.append((start, end, stack))
            newest = end
            if main:
                self.timeline.add(start, end, interned.phase(stack), stack)
        while kept and kept[0][1] < record.end_ns - _STACK_KEEP_NS:
            kept.popleft()
        if main:
            self.newest_ns = max(self.newest_ns or 0, record.end_ns)
            self._mark_loops(interned)

    def _is_main(self, record: StackSpans) -> bool:
        main_tid = self.rank.main_tid
        if main_tid is not None:
            return record.tid == main_tid
        return record.tid in (self.rank.pid, self.rank.ns_pid) or record.thread == "MainThread"

    def add_loop(self, record: LoopSample, interned: Interned) -> None:
        """Take in a dump; it names the micro-batch of the span it falls into, once that has come."""
        self.loop_samples.append(record)
        self._pending_loops.append(record)
        self._mark_loops(interned)

    def _mark_loops(self, interned: Interned) -> None:
        waiting = []
        for sample in self._pending_loops:
            if self.newest_ns is None or sample.at_ns > self.newest_ns:
                waiting.append(sample)
                continue
            micro_batch = interned.micro_batch(sample)
            if micro_batch is not None:
                self.timeline.mark_micro_batch(sample.at_ns, interned.phase(sample.stack), micro_batch)
        self._pending_loops = waiting[-64:]

    def add_host(self, record: HostSamples) -> None:
        """Take in run times of the main thread."""
        self._host.extend(zip(record.at_ns, record.run_ns, strict=False))
        while self._host and self._host[0][0] < self._host[-1][0] - _HOST_KEEP_NS:
            self._host.popleft()
        if record.threads is not None:
            self.threads_count = record.threads

    def add_exit(self, record: RankExit) -> None:
        """Take note that the process ended, was stopped, or goes on."""
        if record.reason == "stopped":
            self.stopped = True
        elif record.reason == "resumed":
            self.stopped = False
        else:
            self.exit_reason = record.reason

    def host_cpu(self, since_ns: int) -> float | None:
        """Share of one core that the main thread ran since then, None without two samples."""
        rows = [row for row in self._host if row[0] >= since_ns]
        if len(rows) < 2 or rows[-1][0] <= rows[0][0]:
            return None
        return (rows[-1][1] - rows[0][1]) / (rows[-1][0] - rows[0][0])
