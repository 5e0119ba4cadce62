"""What is kept of one rank: its timeline, its threads' recent stacks, its host figures, whether it lives."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import takewhile

from ppscope.phase_sums import PhaseTimes
from ppscope.records import HostSamples, LoopSample, ProbeSpans, Rank, RankExit, StackSpans
from ppscope.session.exact import ExactRank, better
from ppscope.session.interned import Interned
from ppscope.session.missed import Missed
from ppscope.timeline import KEEP_NS, RankTimeline
from ppscope.views import PhaseStyle

_STACK_KEEP_NS = 60 * 1_000_000_000
_HOST_KEEP_NS = 30 * 1_000_000_000
_LOOP_SAMPLES = 4096
_FOR_EVER_NS = 2**63

Sampled = tuple[int, int, int]
"""(start_ns, end_ns, stack)"""


class RankState:
    """Everything seen of one scheduler process; with `keep_all` nothing of its timelines is dropped."""

    def __init__(self, rank: Rank, styles: Sequence[PhaseStyle], keep_all: bool = False) -> None:
        self.rank = rank
        self._styles = styles
        self._keep_all = keep_all
        self.timeline = RankTimeline(styles, _FOR_EVER_NS if keep_all else KEEP_NS)
        self.exact: ExactRank | None = None
        self._missed = Missed(styles)
        self.threads: dict[int, deque[Sampled]] = {}
        self.thread_names: dict[int, str] = {}
        self.loop_samples: deque[LoopSample] = deque(maxlen=_LOOP_SAMPLES)
        self.newest_ns: int | None = None
        self.exit_reason: str | None = None
        self.stopped = False
        self.stopped_ns = 0
        self.threads_count: int | None = rank.threads
        self._host: deque[tuple[int, int]] = deque()
        self._waits: deque[tuple[int, int]] = deque()
        self._process: deque[tuple[int, int]] = deque()
        self._cores: deque[tuple[int, int]] = deque()
        self._pending_loops: list[LoopSample] = []

    @property
    def alive(self) -> bool:
        """False once the process was seen to be gone."""
        return self.exit_reason is None

    def add_spans(self, record: StackSpans, interned: Interned) -> None:
        """Take in one window of one thread; the main thread's goes to the timeline as well."""
        if record.tid not in self.threads:
            self._forget_threads(record.start_ns - _STACK_KEEP_NS)
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
            self._missed.add(record)
            self.newest_ns = max(self.newest_ns or 0, record.end_ns)
            self._mark_loops(interned)

    def _forget_threads(self, before_ns: int) -> None:
        """Threads that ended: a library may begin new ones for as long as the server runs."""
        for tid, spans in list(self.threads.items()):
            if not spans or spans[-1][1] < before_ns:
                del self.threads[tid], self.thread_names[tid]

    def add_probe(self, record: ProbeSpans) -> None:
        """Take in what the probe timed; from then on it stands before what was sampled."""
        if self.exact is None:
            self.exact = ExactRank(self._styles, self._keep_all)
        self.exact.add(record)

    def seen_ns(self) -> int | None:
        """End of the newest data, sampled or exact."""
        exact = self.exact.newest_ns if self.exact is not None else None
        return exact if self.newest_ns is None else self.newest_ns if exact is None else max(exact, self.newest_ns)

    def extents(self) -> list[tuple[int, int]]:
        """(oldest start, newest end) of what was sampled and of what was timed."""
        exact = self.exact.timeline.extent if self.exact is not None else None
        return [extent for extent in (self.timeline.extent, exact) if extent is not None]

    def long_times(self, start_ns: int, end_ns: int) -> PhaseTimes:
        """Phase times of a long window, sampled ones to the quarter second at its edges, which is cheap."""
        if self.exact is not None:
            return self.times(start_ns, end_ns)[0]
        return self._missed.corrected(self.timeline.rough_times(start_ns, end_ns), start_ns, end_ns)

    def sampled_times(self, start_ns: int, end_ns: int) -> PhaseTimes:
        """Phase times of a window by the stacks alone, samples that could not be read given back."""
        return self._missed.corrected(self.timeline.times(start_ns, end_ns), start_ns, end_ns)

    def times(self, start_ns: int, end_ns: int) -> tuple[PhaseTimes, bool]:
        """Phase times of a window, and whether they are exact: they are where the probe has seen as much of it as the stacks."""
        sampled = self.sampled_times(start_ns, end_ns)
        if self.exact is not None and better(exact := self.exact.timeline.times(start_ns, end_ns), sampled):
            return exact, True
        return sampled, False

    def main_spans(self) -> list[Sampled]:
        """The sampled stacks of the main thread over the last minute, oldest first."""
        mains = [tid for tid in self.threads if self._is_main_thread(tid, self.thread_names.get(tid, ""))]
        return [span for tid in mains for span in self.threads[tid]]

    def _is_main(self, record: StackSpans) -> bool:
        return self._is_main_thread(record.tid, record.thread)

    def _is_main_thread(self, tid: int, name: str) -> bool:
        main_tid = self.rank.main_tid
        if main_tid is not None:
            return tid == main_tid
        return tid in (self.rank.pid, self.rank.ns_pid) or name == "MainThread"

    def add_loop(self, record: LoopSample, interned: Interned) -> None:
        """Take in a dump; it names the micro-batch of the span it falls into, once that has come."""
        self.loop_samples.append(record)
        self._pending_loops.append(record)
        self._mark_loops(interned)

    def loops_since(self, since_ns: int) -> list[LoopSample]:
        """Dumps since an instant, newest first."""
        return list(takewhile(lambda sample: sample.at_ns >= since_ns, reversed(self.loop_samples)))

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
        self._waits.extend(zip(record.at_ns[-1:], record.wait_ns[-1:], strict=False))
        self._cores.extend(zip(record.at_ns[-1:], record.processors[-1:], strict=False))
        if record.process_cpu_ns is not None:
            self._process.extend((at_ns, record.process_cpu_ns) for at_ns in record.at_ns[-1:])
        for kept in (self._host, self._waits, self._cores, self._process):
            while kept and kept[0][0] < kept[-1][0] - _HOST_KEEP_NS:
                kept.popleft()
        if record.threads is not None:
            self.threads_count = record.threads

    def add_exit(self, record: RankExit) -> None:
        """Take note that the process ended, was stopped, or goes on."""
        if record.reason == "stopped":
            self.stopped, self.stopped_ns = True, record.at_ns
        elif record.reason == "resumed":
            self.stopped = False
        else:
            self.exit_reason = record.reason

    def by_request(self, since_ns: int, interned: Interned) -> float | None:
        """Share of the main thread's sampled time since then in loops over requests, None without samples."""
        seen = [(end - max(start, since_ns), stack) for start, end, stack in self.main_spans() if end > since_ns]
        whole = sum(took for took, _ in seen)
        return sum(took for took, stack in seen if interned.by_request(stack)) / whole if whole else None

    def batch_share(self, since_ns: int, interned: Interned) -> float | None:
        """Share of the main thread's sampled time since then in stacks that only a loop turn with a batch gets to, None without samples."""
        whole = with_batch = 0
        for tid in [tid for tid in self.threads if self._is_main_thread(tid, self.thread_names.get(tid, ""))]:
            for start, end, stack in takewhile(lambda span: span[1] > since_ns, reversed(self.threads[tid])):
                took = end - max(start, since_ns)
                whole += took
                with_batch += took if interned.meaning(stack).needs_batch else 0
        return with_batch / whole if whole else None

    def host_cpu(self, since_ns: int) -> float | None:
        """Share of one core that the main thread ran since then, None without two samples."""
        return _growth(self._host, since_ns)

    def process_cpu(self, since_ns: int) -> float | None:
        """Cores that all threads of the process together used since then, None without two readings."""
        return _growth(self._process, since_ns)

    def cores(self, since_ns: int) -> tuple[int, ...]:
        """The cores its main thread was seen on since then, in order."""
        return tuple(sorted({core for at_ns, core in self._cores if at_ns >= since_ns}))

    def host_wait(self, since_ns: int) -> float | None:
        """Share of the time since then in which the main thread was ready to run and had no core, None where not told."""
        return _growth(self._waits, since_ns)


def _growth(rows: deque[tuple[int, int]], since_ns: int) -> float | None:
    first = next((row for row in rows if row[0] >= since_ns), None)
    if first is None or rows[-1][0] <= first[0]:
        return None
    return (rows[-1][1] - first[1]) / (rows[-1][0] - first[0])
