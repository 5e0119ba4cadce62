"""Micro-batch ids and rank facts, by `py-spy dump` of one scheduler after the other."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable

from ppscope.records import AnyCommand, DumpNow, LoopSample, Rank, RankKey, Server
from ppscope.sources.base import Emit, Source
from ppscope.sources.stacks_dump_parse import DumpError, LoopFacts, parse_dump
from ppscope.sources.stacks_dump_run import run_dump
from ppscope.sources.stacks_intern import StackTable
from ppscope.sources.stacks_pyspy import MISSING, Trouble, explain, find_pyspy, presence
from ppscope.sources.stacks_room import FREE, Room

INTERVAL_S = 1.0
BUDGET_CORES = 0.03
BURST_CORES = 0.25
FIRST_CORES = 1.0
ATTEMPTS = 4
TIMEOUT_S = 3.0
MAX_BURST = 1000
MAX_QUEUE = 5000
MAX_WAITING = 200
"""Dumps of bursts without a pace of their own that may wait."""
LONGEST_S = 20.0
"""Between two dumps, however dear they are."""
UNEVEN = (0.5, 1.5)
"""Times the usual wait between dumps: at an even pace they may fall in with the loop and meet some of its slots only."""

OnFacts = Callable[[RankKey, "dict[str, int]"], None]


class DumpSource(Source):
    """One dump of each rank soon after attach, then one a second in rotation (fewer where there is little room), and bursts on demand.

    `rank_facts` holds per rank the integer arguments of `run_scheduler_process` (`gpu_id`, `pp_rank` …); `on_facts` is called from
    this source's thread when they are first learned or change.
    """

    name = "dumps"

    def __init__(
        self,
        emit: Emit,
        table: StackTable | None = None,
        on_facts: OnFacts | None = None,
        room: Room = FREE,
    ) -> None:
        super().__init__(emit)
        self._room = room
        self.table = table if table is not None else StackTable(emit)
        self.rank_facts: dict[RankKey, dict[str, int]] = {}
        self._on_facts = on_facts
        self._wake = threading.Condition()
        self._ranks: dict[RankKey, Rank] = {}
        self._queue: deque[tuple[RankKey, float | None]] = deque()
        """Ranks to dump next, and the cores that dumping them in a row may take: None for what the node has room for."""
        self._turn = 0
        self._chance = random.Random()
        self._failures: dict[RankKey, int] = {}
        self._child: int | None = None
        self._abandoned: dict[int, tuple[subprocess.Popen[bytes], Trouble]] = {}
        """By pid of the scheduler a py-spy that cannot be ended: no other is started before it is gone."""
        self._thread: threading.Thread | None = None
        self._binary: str | None = None

    def start(self, server: Server) -> None:
        """Dump every rank once, then go round."""
        self._binary = find_pyspy()
        if self._binary is None:
            self.status("dead", MISSING.message, MISSING.remedy)
            return
        self.update(server)
        self._thread = threading.Thread(target=self._run, name="ppscope-dumps", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the running dump and the thread."""
        self.stopping.set()
        with self._wake:
            self._wake.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(3.0)

    def update(self, server: Server) -> None:
        """Go round these ranks from now on; a new process is dumped at once."""
        with self._wake:
            for rank in sorted(server.ranks, key=lambda rank: rank.key, reverse=True):
                known = self._ranks.get(rank.key)
                if known is None or (known.pid, known.started_ticks) != (rank.pid, rank.started_ticks):
                    self._queue.appendleft((rank.key, FIRST_CORES))
                    self._failures.pop(rank.key, None)
            self._ranks = {rank.key: rank for rank in server.ranks}
            self._wake.notify_all()

    def obey(self, command: AnyCommand) -> None:
        """Queue a burst."""
        if not isinstance(command, DumpNow):
            return
        count = max(0, min(command.count, MAX_BURST))
        with self._wake:
            cores = None if command.cores is None else min(max(command.cores, BUDGET_CORES), FIRST_CORES)
            wanted = [(key, cores) for key in sorted(self._ranks) if command.rank in (None, key)]
            if cores is None and len(self._queue) >= MAX_WAITING:
                return  # where there is little room a burst outlasts the wish for the next
            for _ in range(count):
                self._chance.shuffle(wanted)
                self._queue.extend(wanted[: max(0, MAX_QUEUE - len(self._queue))])
            self._wake.notify_all()

    def children(self) -> tuple[int, ...]:
        """Pid of the dump that runs now."""
        child = self._child
        return () if child is None else (child,)

    def _run(self) -> None:
        try:
            while not self.stopping.is_set():
                rank, cores = self._next()
                if rank is None:
                    self._pause(INTERVAL_S)
                    continue
                cpu_s, uneven = self._dump(rank), self._chance.uniform(*UNEVEN)
                if cores is not None:
                    self._wait_s((cpu_s / cores - cpu_s) * uneven)
                else:
                    self._pause(min(max(INTERVAL_S, cpu_s / (BUDGET_CORES * self._share())) * uneven, LONGEST_S))
        except Exception as error:  # noqa: BLE001  a source fails alone and says so
            self.status("dead", f"dumps ended: {type(error).__name__}: {error}")

    def _next(self) -> tuple[Rank | None, float | None]:
        with self._wake:
            while self._queue:
                key, cores = self._queue.popleft()
                if key in self._ranks:
                    return self._ranks[key], BURST_CORES * self._share() if cores is None else cores
            well = [key for key in sorted(self._ranks) if self._failures.get(key, 0) < 3 or self._turn % 10 == 0]
            self._turn += 1
            return (self._ranks[well[self._turn % len(well)]] if well else None), None

    def _share(self) -> float:
        return self._room.share(time.monotonic_ns())

    def _pause(self, seconds: float) -> None:
        """Sleep, but not past a request for a burst."""
        with self._wake:
            self._wake.wait_for(lambda: bool(self._queue) or self.stopping.is_set(), seconds)

    def _wait_s(self, seconds: float) -> None:
        """Sleep between two dumps of a burst, but not past a new process."""
        with self._wake:
            self._wake.wait_for(
                lambda: self.stopping.is_set() or (bool(self._queue) and self._queue[0][1] == FIRST_CORES),
                min(max(seconds, 0.005), LONGEST_S),
            )

    def _dump(self, rank: Rank) -> float:
        assert self._binary is not None
        self._abandoned = {pid: left for pid, left in self._abandoned.items() if left[0].poll() is None}
        if rank.pid in self._abandoned:
            self._trouble(rank.key, self._abandoned[rank.pid][1])
            return 0.0
        absent = presence(rank.pid, rank.started_ticks)
        if absent is not None:
            self._trouble(rank.key, absent)
            return 0.0
        cpu_s = 0.0
        trouble = Trouble("transient", f"process {rank.pid} changed while it was read")
        for _ in range(ATTEMPTS):
            output = run_dump(self._binary, rank.pid, TIMEOUT_S, self.stopping, self._now_running)
            cpu_s += output.cpu_s
            if self.stopping.is_set():
                return cpu_s
            if output.code == 0:
                try:
                    facts = parse_dump(
                        output.data, {rank.pid, *(tid for tid in (rank.main_tid, rank.ns_pid) if tid is not None)}
                    )
                except DumpError as error:
                    trouble = Trouble("transient", f"{error} (process {rank.pid})")
                    continue
                self._tell(
                    rank, facts, (output.before_ns + output.after_ns) // 2, (output.after_ns - output.before_ns) // 2
                )
                return cpu_s
            if output.abandoned is not None and output.trouble is not None:
                self._abandoned[rank.pid] = output.abandoned, output.trouble
            trouble = output.trouble or explain(output.stderr, output.code, rank.pid)
            if trouble.kind != "transient":
                break
        self._trouble(rank.key, trouble)
        return cpu_s

    def _now_running(self, pid: int | None) -> None:
        self._child = pid

    def _tell(self, rank: Rank, facts: LoopFacts, at_ns: int, error_ns: int) -> None:
        self._failures.pop(rank.key, None)
        stack = self.table.stack(facts.frames)
        self.emit(
            LoopSample(
                rank.key, at_ns, error_ns, stack, facts.loop, facts.mb_id, facts.next_mb_id, facts.batch, facts.occupied, facts.owns_gil
            )
        )  # fmt: skip
        known = dict(facts.rank)
        if known and self.rank_facts.get(rank.key) != known:
            self.rank_facts[rank.key] = known
            if self._on_facts is not None:
                self._on_facts(rank.key, known)
        self.status("ok", rank=rank.key)

    def _trouble(self, key: RankKey, trouble: Trouble) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        if trouble.kind == "transient" and failures < 3:
            return
        self.status(
            "degraded" if trouble.kind in ("transient", "hung") else "dead", trouble.message, trouble.remedy, key
        )
