"""Stacks of every scheduler, live: rolling, overlapping `py-spy record` windows on one CPU budget."""

from __future__ import annotations

import selectors
import threading
import time
from dataclasses import dataclass, field

from ppscope.records import AnyCommand, Note, Rank, RankKey, Server, SetRate, StackSpans
from ppscope.sources.base import Emit, Source
from ppscope.sources.stacks_intern import StackTable, clean
from ppscope.sources.stacks_plan import (
    BUDGET_CORES,
    LONG_WINDOW_S,
    OVERLAP_S,
    START_S,
    RankLoad,
    Slot,
    plan,
    window_lengths_s,
)
from ppscope.sources.stacks_pyspy import MISSING, Trouble, find_pyspy, presence, thread_count
from ppscope.sources.stacks_room import FREE, Room
from ppscope.sources.stacks_spending import Spending
from ppscope.sources.stacks_windows import Result, ThreadSpans, Window, clip, hung, reap_all, sound

DEFAULT_HZ = 50.0
FIRST_WINDOW_S = 0.7
MAX_OVERLAP_S = 0.6
REPLAN_S = 2.0
REAP_S = 1.2
BACKOFF_S = (0.3, 1.0, 2.0, 5.0, 10.0, 30.0)
MAX_OTHER_THREADS = 48
_FOR_GOOD = ("gone",)
_LATE_S = 2.0
"""So much longer than a window a turn may last: windows outlast theirs by the overlap, and by what py-spy takes to write."""


@dataclass
class _Sampled:
    """One rank under observation."""

    rank: Rank
    order: int
    running: list[Window] = field(default_factory=list)
    windows: int = 0
    begun_ns: int = 0
    covered_ns: int = 0
    lag_s: float = 0.0
    factor: float = 1.0
    measured: bool = False
    threads: int = 1
    failures: int = 0
    retry_ns: int = 0
    ended: bool = False
    constant: dict[int, int] = field(default_factory=dict)
    """Last stack of each other thread, sent again only once it changes."""


class StackSource(Source):
    """Which stack each scheduler's threads had, from when to when.

    One thread starts, interrupts and reads every window. Ranks fail alone and are tried again with growing pauses.
    """

    name = "stacks"

    def __init__(
        self,
        emit: Emit,
        table: StackTable | None = None,
        rate_hz: float | None = None,
        budget_cores: float = BUDGET_CORES,
        room: Room = FREE,
    ) -> None:
        super().__init__(emit)
        self.table = table if table is not None else StackTable(emit)
        self.budget_cores = budget_cores
        self._room = room
        self._allowed_cores = budget_cores
        self._spending = Spending()
        self.rate_hz: float | None = None
        """Lowest rate of the ranks sampled now, hertz; None before the first window."""
        self.idle_cores: float | None = None
        """Idle cores of the node where that lowers the rate; None elsewhere."""
        self._requested_hz = rate_hz
        self._lock = threading.Lock()
        self._server: Server | None = None
        self._sampled: dict[RankKey, _Sampled] = {}
        self._slots: dict[RankKey, Slot] = {}
        self._turn = 0
        self._turn_ns = 0
        self._turn_began_ns = 0
        self._replan_ns = 0
        self._overlap_s = OVERLAP_S
        self._thread: threading.Thread | None = None
        self._binary: str | None = None
        self._selector: selectors.BaseSelector | None = None

    def start(self, server: Server) -> None:
        """Begin to sample every rank of the server."""
        self._binary = find_pyspy()
        if self._binary is None:
            self.status("dead", MISSING.message, MISSING.remedy)
            return
        self._server = server
        self._thread = threading.Thread(target=self._run, name="ppscope-stacks", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End every window and the thread."""
        self.stopping.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(3.0)

    def update(self, server: Server) -> None:
        """Sample the ranks of this server from now on."""
        with self._lock:
            self._server = server
            self._replan_ns = 0

    def obey(self, command: AnyCommand) -> None:
        """Change the rate."""
        if isinstance(command, SetRate):
            with self._lock:
                self._requested_hz = min(max(command.stack_hz, 1.0), 200.0)
                self._replan_ns = 0

    def children(self) -> tuple[int, ...]:
        """Pids of the py-spy windows that run now."""
        return tuple(window.pyspy_pid for sampled in list(self._sampled.values()) for window in tuple(sampled.running))

    def _run(self) -> None:
        try:
            with selectors.DefaultSelector() as self._selector:
                while not self.stopping.is_set():
                    self._turn_round()
        except Exception as error:  # noqa: BLE001  a source fails alone and says so
            self.status("dead", f"stack sampling ended: {type(error).__name__}: {error}")
        finally:
            self._hand_over()

    def _hand_over(self) -> None:
        """End every window and tell what it has seen: a recording that ends holds its last seconds as well."""
        left = [(sampled, window) for sampled in self._sampled.values() for window in sampled.running]
        for sampled in self._sampled.values():
            sampled.running.clear()
        try:
            for (sampled, window), result in zip(left, reap_all([window for _, window in left], REAP_S), strict=True):
                if result.trouble is None:
                    self._send(sampled, window, result)
        except Exception as error:  # noqa: BLE001  nobody is left to tell but the stream
            self.emit(
                Note(time.monotonic_ns(), "warning", f"the last windows are lost: {type(error).__name__}: {error}")
            )

    def _turn_round(self) -> None:
        assert self._selector is not None
        now_ns = time.monotonic_ns()
        if now_ns >= self._replan_ns:
            self._replan(now_ns)
        deadline_ns = min(now_ns + 100_000_000, self._replan_ns)
        for sampled in list(self._sampled.values()):
            deadline_ns = min(deadline_ns, self._drive(sampled, time.monotonic_ns()))
        timeout_s = max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)
        for key, _ in self._selector.select(timeout_s):
            sampled, window = key.data
            if window.drain():
                self._selector.unregister(window)
                sampled.running.remove(window)
                self._finished(sampled, window, window.finish())

    def _replan(self, now_ns: int) -> None:
        with self._lock:
            server, requested = self._server, self._requested_hz
            self._replan_ns = now_ns + int(REPLAN_S * 1e9)
        ranks = {rank.key: rank for rank in server.ranks} if server is not None else {}
        for key in list(self._sampled):
            known, rank = self._sampled[key], ranks.get(key)
            if rank is None or (rank.pid, rank.started_ticks) != (known.rank.pid, known.rank.started_ticks):
                known.ended = True
                if not known.running:
                    del self._sampled[key]
            elif rank is not known.rank:
                known.rank = rank
        for order, key in enumerate(sorted(ranks)):
            if key not in self._sampled:
                self._sampled[key] = _Sampled(ranks[key], order)
        for sampled in self._sampled.values():
            sampled.threads = thread_count(sampled.rank.pid) or sampled.threads
        loads = [self._load(sampled) for sampled in self._sampled.values() if not sampled.ended]
        share = self._room.share(now_ns)
        # A rate that was asked for is kept; the windows are still as long as where there is little room.
        self._allowed_cores = self.budget_cores * (share if requested is None else 1.0)
        cores = self._spending.to_plan(now_ns, self._allowed_cores)
        if now_ns >= self._turn_ns and not self._is_awaited(now_ns):
            self._turn += self._turn_ns > 0
            self._turn_began_ns = now_ns
            self._turn_ns = now_ns + int(LONG_WINDOW_S * 1e9)
        self._slots = plan(loads, requested or DEFAULT_HZ, cores, self._turn, window_lengths_s(share))
        self.rate_hz = float(min(slot.rate_hz for slot in self._slots.values())) if self._slots else None
        fewer = requested is None and self.rate_hz is not None and self.rate_hz < DEFAULT_HZ
        self.idle_cores = self._room.idle_cores(now_ns) if share < 1.0 and fewer else None

    def _is_awaited(self, now_ns: int) -> bool:
        """Whether a rank whose turn it is has not begun yet, for it waits until the windows before it are over: they outlast a turn.

        Its turn would go by, and the next time again. But no turn waits for long: a py-spy may hang, and all may cost more than planned.
        """
        if now_ns - self._turn_began_ns > (LONG_WINDOW_S + _LATE_S) * 1e9:
            return False
        return any(
            key in self._slots
            and not sampled.ended
            and sampled.failures == 0
            and sampled.begun_ns < self._turn_began_ns
            for key, sampled in self._sampled.items()
        )

    def _drive(self, sampled: _Sampled, now_ns: int) -> int:
        """Do what is due for a rank; returns when to come back."""
        for window in sampled.running:
            window.close_if_due(now_ns)
            if window.outlives_kill(now_ns):
                self.status("degraded", f"{hung(sampled.rank.pid)} and does not end", rank=sampled.rank.key)
        slot = self._slots.get(sampled.rank.key)
        newest = sampled.running[-1] if sampled.running else None
        next_ns = max(sampled.retry_ns, newest.due_ns - int(self._overlap_s * 1e9) if newest else 0)
        wanted = slot is not None and not sampled.ended and len(sampled.running) < 2
        if slot is not None and wanted and now_ns >= next_ns:
            if self._fits(sampled, slot):
                self._begin(sampled, slot)
                next_ns = now_ns + 1_000_000_000
            else:
                next_ns = now_ns + 200_000_000
        dues = [w.due_ns for w in sampled.running if w.interrupted_ns is None and not w.killed]
        return min([*dues, next_ns] if wanted else [*dues, now_ns + 1_000_000_000])

    def _fits(self, sampled: _Sampled, slot: Slot) -> bool:
        """Whether a rank may begin now: one whose turn has come waits until those before it have made room."""
        running = [
            self._load(other).cores(window.rate_hz, window.length_s)
            for other in self._sampled.values()
            for window in other.running[-1:]
        ]
        # One rank is always sampled, however dear it is.
        if sampled.running or sampled.windows == 0 or not running:
            return True
        return sum(running) + self._load(sampled).cores(slot.rate_hz, slot.window_s) <= 1.05 * self._allowed_cores

    @staticmethod
    def _load(sampled: _Sampled) -> RankLoad:
        return RankLoad(sampled.rank.key, sampled.threads, sampled.factor)

    def _begin(self, sampled: _Sampled, slot: Slot) -> None:
        assert self._binary is not None
        assert self._selector is not None
        rank = sampled.rank
        absent = presence(rank.pid, rank.started_ticks)
        if absent is not None:
            self._trouble(sampled, absent)
            return
        length_s = slot.window_s
        if sampled.windows == 0:
            length_s = FIRST_WINDOW_S
        elif sampled.windows == 1:
            # Spread the ranks over the window, so that their starts do not meet.
            length_s *= 0.4 + 0.6 * (sampled.order % 8) / 8
        try:
            window = Window(self._binary, rank.pid, slot.rate_hz, length_s + self._overlap_s)
        except OSError as error:
            self._trouble(
                sampled,
                Trouble("missing", f"py-spy does not start: {error.strerror}", "pip install --force-reinstall py-spy"),
            )
            return
        sampled.windows += 1
        sampled.begun_ns = time.monotonic_ns()
        sampled.running.append(window)
        self._selector.register(window, selectors.EVENT_READ, (sampled, window))

    def _finished(self, sampled: _Sampled, window: Window, result: Result) -> None:
        lasted_s = max(0.1, (time.monotonic_ns() - window.spawned_ns) / 1e9)
        model_s = START_S + lasted_s * window.rate_hz * RankLoad(sampled.rank.key, sampled.threads).sample_s()
        self._spending.add(time.monotonic_ns(), result.cpu_s)
        if result.cpu_s > 0:
            measured = min(max(result.cpu_s / model_s, 0.2), 20.0)
            # Ranks that take turns are seldom measured: the first time counts whole.
            sampled.factor += (0.4 if sampled.measured else 1.0) * (measured - sampled.factor)
            sampled.measured = True
        if result.trouble is not None:
            self._trouble(sampled, result.trouble)
            return
        sampled.failures = 0
        if result.lag_s is not None:
            sampled.lag_s = max(result.lag_s, 0.7 * sampled.lag_s)
            worst = max(known.lag_s for known in self._sampled.values())
            self._overlap_s = min(max(OVERLAP_S, 1.25 * worst), MAX_OVERLAP_S)
        self._send(sampled, window, result)
        if not any(window.killed for window in sampled.running):
            self.status("ok", rank=sampled.rank.key)

    def _trouble(self, sampled: _Sampled, trouble: Trouble) -> None:
        sampled.failures += 1
        if sampled.covered_ns == 0:
            sampled.windows = 0  # still nothing on the screen: the next window is a fast first one again
        pause_s = BACKOFF_S[min(sampled.failures, len(BACKOFF_S)) - 1]
        sampled.retry_ns = time.monotonic_ns() + int(pause_s * 1e9)
        if trouble.kind in _FOR_GOOD:
            sampled.ended = True
        passing = trouble.kind == "transient" and sampled.failures < 3
        if not passing:
            state = "degraded" if trouble.kind in ("transient", "hung") else "dead"
            self.status(state, trouble.message, trouble.remedy, sampled.rank.key)

    def _send(self, sampled: _Sampled, window: Window, result: Result) -> None:
        rank = sampled.rank
        start_ns = max(result.start_ns, sampled.covered_ns)
        if result.end_ns <= start_ns:
            return
        period_ns = int(1e9 / window.rate_hz)
        main, others = split_main(result.threads, rank)
        main = sound(main) if main is not None else None
        sent = [(main, rank.main_tid or rank.pid)] if main is not None else []
        others.sort(key=lambda spans: -len(spans.starts_ns))
        sent += [(spans, spans.tid) for spans in others[:MAX_OTHER_THREADS] if spans.tid is not None]
        for spans, tid in sent:
            cut = clip(spans, start_ns)
            if not cut.starts_ns:
                continue
            stacks = [self.table.stack(stack) for stack in cut.stacks]
            if spans is not main and len(set(stacks)) == 1:
                if sampled.constant.get(tid) == stacks[0]:
                    continue
                sampled.constant[tid] = stacks[0]
            elif spans is not main:
                sampled.constant.pop(tid, None)
            self.emit(
                StackSpans(
                    rank.key,
                    tid,
                    clean(spans.name)[:200],
                    start_ns,
                    result.end_ns,
                    period_ns,
                    cut.starts_ns,
                    cut.ends_ns,
                    stacks,
                    failed=result.failed_share,
                )
            )
        sampled.covered_ns = result.end_ns


def split_main(threads: list[ThreadSpans], rank: Rank) -> tuple[ThreadSpans | None, list[ThreadSpans]]:
    """The scheduler's main thread and the others: by its number in its own namespace, then by its name."""
    numbers = {rank.ns_pid} if rank.ns_pid is not None else {rank.pid, rank.main_tid}
    main = next((t for t in threads if t.tid is not None and t.tid in numbers), None)
    if main is None:
        main = next((t for t in threads if t.name == "MainThread"), None)
    return main, [t for t in threads if t is not main]
