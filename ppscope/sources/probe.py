"""The exact source: spans that the probe inside each scheduler writes to its ring."""

from __future__ import annotations

import os
import threading
import time

from ppscope.probe import layout
from ppscope.probe.start import MODE, MODES
from ppscope.records import Rank, RankKey, Server
from ppscope.sources.base import Emit, Source
from ppscope.sources.probe_folder import SHM, NoProbeError, RefusedError, open_file, open_folder
from ppscope.sources.probe_ring import Head, RingReader

READ_S = 0.2
_SEARCH_S = 1.0
_ANSWER_S = 5.0
"""How long a dormant probe may take to make its ring before more is said than that it sleeps."""
_LOST_NS = 60_000_000_000
"""For so long after a loss it is said that there was one; the counts stay."""


class ProbeSource(Source):
    """Reads the rings of the server's ranks five times a second, and keeps dormant probes awake while it does.

    It writes nothing of the server's: setting the time of the file that a probe made for this purpose is how it asks for spans.
    """

    name = "probe"

    def __init__(self, emit: Emit, parts: tuple[str, ...] = SHM, root: str | None = None) -> None:
        super().__init__(emit)
        self._parts, self._root = parts, root
        self._lock = threading.Lock()
        self._ranks: tuple[Rank, ...] = ()
        self._shm: str | None = None
        """Where the server's shared memory is, of one that was started with the probe."""
        self._rings: dict[Rank, RingReader] = {}
        self._wanted: dict[Rank, int] = {}
        self._asked_at: dict[Rank, float] = {}
        self._search_at = 0.0
        self._thread: threading.Thread | None = None

    def start(self, server: Server) -> None:
        """Begin to look for rings."""
        self.update(server)
        self._thread = threading.Thread(target=self._run, name="probe", daemon=True)
        self._thread.start()

    def update(self, server: Server) -> None:
        """Take note of the ranks that are there now."""
        # A rank is the same as long as its process is: what is learned of its GPU meanwhile does not matter here.
        known = {(rank.pid, rank.started_ticks): rank for rank in self._ranks}
        with self._lock:
            self._ranks = tuple(known.get((rank.pid, rank.started_ticks), rank) for rank in server.ranks)
            asked_for = any(fact.name == f"env.{MODE}" and fact.value in MODES for fact in server.facts)
            self._shm = f"/proc/{server.launcher_pid}/root/dev/shm" if asked_for else None
            self._search_at = 0.0

    def stop(self) -> None:
        """End the thread; unmap everything."""
        self.stopping.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self) -> None:
        try:
            while not self.stopping.wait(READ_S):
                self._look()
        except Exception as error:  # noqa: BLE001  a source fails alone
            self.status("dead", f"{type(error).__name__}: {error}")
        finally:
            for rank in (*self._rings, *self._wanted):
                self._forget(rank)

    def _look(self) -> None:
        with self._lock:
            ranks = self._ranks
        for rank in {*self._rings, *self._wanted} - set(ranks):
            self._forget(rank)
        if time.monotonic() >= self._search_at:
            self._search_at = time.monotonic() + _SEARCH_S
            self._search(ranks)
        now_ns = time.monotonic_ns()
        for fd in self._wanted.values():
            os.utime(fd, ns=(now_ns, now_ns))
        for rank, ring in self._rings.items():
            while (spans := ring.read(rank.key, time.monotonic_ns())) is not None and not self.stopping.is_set():
                self.emit(spans)
                if len(spans.starts_ns) < layout.CAPACITY // 4:
                    break

    def _search(self, ranks: tuple[Rank, ...]) -> None:
        states: dict[RankKey, tuple[str, str, str]] = {}
        for rank in ranks:
            if rank not in self._rings:
                try:
                    self._open(rank)
                except NoProbeError:
                    states[rank.key] = self._without()
                    continue
                except RefusedError as error:
                    states[rank.key] = ("off", str(error), error.remedy)
                    continue
            states[rank.key] = self._state(rank)
        distinct = set(states.values())
        if len(distinct) == 1:
            self.status(*distinct.pop())
            return
        worst = next((state for state in distinct if state[0] == "degraded"), None) or next(
            (state for state in distinct if state[0] == "off"), None
        )
        if worst is not None:
            exact = sum(1 for state in states.values() if state[0] == "ok")
            self.status("degraded", f"{exact} of {len(states)} ranks exact: {worst[1]}", worst[2])

    def _state(self, rank: Rank) -> tuple[str, str, str]:
        ring = self._rings.get(rank)
        if ring is None:
            if time.monotonic() - self._asked_at.get(rank, 0.0) < _ANSWER_S:
                return "off", "the probe is dormant until the loop turns", ""
            return (
                "off",
                "the probe was asked and makes no ring: the loop does not turn, or /dev/shm is full",
                "df -h /dev/shm",
            )
        head = ring.head()
        if head.flags & layout.GAVE_UP:
            return "degraded", f"the probe gave up: {head.error}", ""
        if ring.lost_ns is not None and time.monotonic_ns() - ring.lost_ns < _LOST_NS:
            return "degraded", "spans were overwritten before they were read", ""
        return "ok", _says(head), ""

    def _without(self) -> tuple[str, str, str]:
        if self._shm is None:
            return "off", "no probe in this server", "ppscope launch -- CMD..."
        said = (
            f"{MODE} is set and there is no ring: the loop has not begun, or /dev/shm is missing, full or not private"
        )
        return "off", said, f"df -h {self._shm}; ls -ld {self._shm}/ppscope-*"

    def _open(self, rank: Rank) -> None:
        folder = open_folder(rank, self._parts, self._root)
        try:
            if rank not in self._wanted:
                fd = open_file(folder, layout.WANTED, rank, os.O_RDWR)
                if fd is not None:
                    self._wanted[rank], self._asked_at[rank] = fd, time.monotonic()
            ring = open_file(folder, layout.RING, rank, os.O_RDONLY)
            if ring is not None:
                self._rings[rank] = RingReader(ring)
            elif rank not in self._wanted:
                raise NoProbeError
        finally:
            os.close(folder)

    def _forget(self, rank: Rank) -> None:
        self._asked_at.pop(rank, None)
        ring, wanted = self._rings.pop(rank, None), self._wanted.pop(rank, None)
        if ring is not None:
            ring.close()
        if wanted is not None:
            os.close(wanted)


def _says(head: Head) -> str:
    if not head.flags & layout.GPU_TIMING:
        return f"exact host spans; GPU timing off: {head.gpu_timing}" if head.gpu_timing else "exact host spans"
    return "exact host spans and GPU forwards"
