"""The host source: state and run time of every rank's main thread from /proc, up to fifty times a second."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress

from ppscope.records import HostSamples, Rank, RankExit, Server
from ppscope.sources.base import Emit, Source
from ppscope.sources.proc_stat import STAT_BYTES, Stat, parse_schedstat, parse_stat, parse_thread

FULL_HZ = 50.0
LEAST_HZ = 5.0
READS_PER_S = 200.0
"""All ranks together: 0.4 % of a core. Run time is cumulative in the kernel, so a lower rate loses detail, not time."""
BATCH_S = 0.5
_STATE_EVERY = 5
"""Rows per reading of the state: `stat` costs four times what `schedstat` does."""
STOPPED_NS = 250_000_000
"""A stop is told once it has lasted this long; a blocking profiler stops a process for milliseconds at a time."""

_Identity = tuple[int, int]


def sample_rate_hz(ranks: int) -> float:
    """Readings per second and rank, within the budget for all of them."""
    return max(LEAST_HZ, min(FULL_HZ, READS_PER_S / max(ranks, 1)))


class _Ended(Exception):
    """The process is not there any more; the reason is `RankExit`'s."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Watched:
    """One rank's main thread: its open files and the rows of the batch that is being filled."""

    def __init__(self, rank: Rank, proc: str) -> None:
        self.rank = rank
        self._fds: list[int] = []
        self.stopped_ns: int | None = None
        self.stop_told = False
        self._countdown = 0
        self._state = "?"
        self._processor = -1
        self._ticks_ns = 0
        try:
            self._open(f"{proc}/{rank.pid}", rank.main_tid or rank.pid)
        except BaseException:
            self.close()
            raise
        self._clear()

    def _open(self, folder: str, tid: int) -> None:
        try:
            self._process = self._descriptor(f"{folder}/stat")
            self.tid = tid if os.path.isdir(f"{folder}/task/{tid}") else self.rank.pid
            self._thread = self._descriptor(f"{folder}/task/{self.tid}/stat")
        except (FileNotFoundError, ProcessLookupError):
            raise _Ended("gone") from None
        if self.rank.started_ticks and self.process().started_ticks != self.rank.started_ticks:
            raise _Ended("pid_reused")
        self._schedstat: int | None = None
        with suppress(OSError):
            schedstat = self._descriptor(f"{folder}/task/{self.tid}/schedstat")
            if parse_schedstat(os.pread(schedstat, STAT_BYTES, 0)) is not None:
                self._schedstat = schedstat

    def _descriptor(self, path: str) -> int:
        fd = os.open(path, os.O_RDONLY)
        self._fds.append(fd)
        return fd

    def _clear(self) -> None:
        self._at: list[int] = []
        self._run: list[int] = []
        self._raw: list[bytes] = []
        self._states: list[str] = []
        self._processors: list[int] = []

    @property
    def exact(self) -> bool:
        """Whether the kernel keeps run time to the nanosecond."""
        return self._schedstat is not None

    def process(self) -> Stat:
        """The whole process's figures; raises _Ended."""
        try:
            stat = parse_stat(os.pread(self._process, STAT_BYTES, 0))
        except ProcessLookupError:
            stat = None
        if stat is None:
            raise _Ended("gone")
        return stat

    def sample(self) -> str:
        """Add a row and return its state letter; raises _Ended."""
        try:
            if self._countdown <= 0 or self._schedstat is None:
                self._countdown = _STATE_EVERY
                self._read_state()
            self._countdown -= 1
            if self._schedstat is not None:
                self._raw.append(os.pread(self._schedstat, STAT_BYTES, 0))
            else:
                self._run.append(self._ticks_ns)
        except ProcessLookupError:
            raise _Ended("gone") from None
        self._at.append(time.monotonic_ns())
        self._states.append(self._state)
        self._processors.append(self._processor)
        return self._state

    def _read_state(self) -> None:
        line = os.pread(self._thread, STAT_BYTES, 0)
        thread = parse_thread(line)
        if thread is None:
            raise _Ended("gone")
        self._state, processor = thread
        self._processor = -1 if processor is None else processor
        if self._state in "ZXx":
            raise _Ended("zombie")
        if self._schedstat is None and (stat := parse_stat(line)) is not None:
            self._ticks_ns = stat.cpu_ns

    def batch(self) -> HostSamples | None:
        """The rows since the last batch, None without any; process figures are absent once the process is."""
        if not self._at:
            return None
        process: Stat | None = None
        with suppress(_Ended):
            process = self.process()
        run_ns, wait_ns = self._run, list[int]()
        if self._raw:
            # Parsed here, all rows at once: half the cost of parsing each as it comes, on a cold cache.
            numbers = list(map(int, b" ".join(self._raw).split()))
            run_ns, wait_ns = numbers[0::3], numbers[1::3]
        if len(run_ns) != len(self._at):
            raise ValueError("schedstat does not hold three numbers")
        record = HostSamples(
            rank=self.rank.key,
            tid=self.tid,
            at_ns=self._at,
            run_ns=run_ns,
            wait_ns=wait_ns,
            states="".join(self._states),
            process_cpu_ns=process.cpu_ns if process else None,
            rss_bytes=process.rss_bytes if process else None,
            threads=process.threads if process else None,
            processors=[] if -1 in self._processors else self._processors,
        )
        self._clear()
        return record

    def close(self) -> None:
        """Give the descriptors back."""
        while self._fds:
            os.close(self._fds.pop())


class HostSource(Source):
    """Run time, waiting for a core, state and core of each rank's main thread, and how its process ends."""

    name = "host"

    def __init__(self, emit: Emit, proc: str = "/proc") -> None:
        super().__init__(emit)
        self._proc = proc
        self._lock = threading.Lock()
        self._wanted: tuple[Rank, ...] | None = None
        self._watched: dict[_Identity, _Watched] = {}
        self._ended: set[_Identity] = set()
        self._period_s = 1.0 / FULL_HZ
        self._thread: threading.Thread | None = None

    def start(self, server: Server) -> None:
        """Begin to watch the server's ranks."""
        self.update(server)
        self._thread = threading.Thread(target=self._run, name="host", daemon=True)
        self._thread.start()

    def update(self, server: Server) -> None:
        """Watch the ranks that came, forget those that went."""
        with self._lock:
            self._wanted = server.ranks

    def stop(self) -> None:
        """End the thread; nothing else was started."""
        self.stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # noqa: BLE001  a source ends with a status, never with a traceback
            self.status("dead", f"reading {self._proc} failed: {type(error).__name__}: {error}")
        finally:
            for watched in self._watched.values():
                watched.close()

    def _watch(self) -> None:
        due = batch_due = time.monotonic()
        while not self.stopping.is_set():
            self._take_over()
            for identity, watched in list(self._watched.items()):
                self._sample(identity, watched)
            now = time.monotonic()
            if now >= batch_due:
                batch_due = now + BATCH_S
                for watched in self._watched.values():
                    self._emit_batch(watched)
            due = max(due + self._period_s, now)
            time.sleep(due - now)
        for watched in self._watched.values():
            self._emit_batch(watched)

    def _take_over(self) -> None:
        if self._wanted is None:
            return
        with self._lock:
            wanted, self._wanted = self._wanted, None
        ranks = {(rank.pid, rank.started_ticks): rank for rank in wanted or ()}
        for identity in [known for known in self._watched if known not in ranks]:
            self._forget(identity)
        for identity, rank in ranks.items():
            if identity in self._watched:
                self._watched[identity].rank = rank
            elif identity not in self._ended:
                self._begin(identity, rank)
        self._tell()

    def _begin(self, identity: _Identity, rank: Rank) -> None:
        try:
            self._watched[identity] = _Watched(rank, self._proc)
        except _Ended as ended:
            self._end(identity, rank, ended.reason)
        except OSError as error:
            self.status("degraded", f"cannot read {self._proc}/{rank.pid}: {error.strerror}", rank=rank.key)

    def _sample(self, identity: _Identity, watched: _Watched) -> None:
        try:
            state = watched.sample()
        except _Ended as ended:
            self._forget(identity)
            self._end(identity, watched.rank, ended.reason)
            self._tell()
            return
        if state in "Tt":
            now_ns = time.monotonic_ns()
            if watched.stopped_ns is None:
                watched.stopped_ns = now_ns
            elif not watched.stop_told and now_ns - watched.stopped_ns >= STOPPED_NS:
                watched.stop_told = True
                self.emit(RankExit(watched.rank.key, watched.rank.pid, watched.stopped_ns, "stopped"))
        elif watched.stopped_ns is not None:
            if watched.stop_told:
                self.emit(RankExit(watched.rank.key, watched.rank.pid, time.monotonic_ns(), "resumed"))
            watched.stopped_ns, watched.stop_told = None, False

    def _forget(self, identity: _Identity) -> None:
        watched = self._watched.pop(identity)
        self._emit_batch(watched)
        watched.close()

    def _end(self, identity: _Identity, rank: Rank, reason: str) -> None:
        self._ended.add(identity)
        self.emit(RankExit(rank.key, rank.pid, time.monotonic_ns(), reason))

    def _emit_batch(self, watched: _Watched) -> None:
        if (batch := watched.batch()) is not None:
            self.emit(batch)

    def _tell(self) -> None:
        count = len(self._watched)
        self._period_s = 1.0 / sample_rate_hz(count)
        if not count:
            self.status("off", "no rank is running")
        elif all(watched.exact for watched in self._watched.values()):
            self.status("ok", f"{sample_rate_hz(count):g} Hz")
        else:
            self.status("degraded", f"{sample_rate_hz(count):g} Hz; no schedstat here, run time to a tick only")
