"""The collector process: finds the server, owns the sources, obeys the view, writes one stream to stdout.

Run as `python -m ppscope.collect.collector`. The end of its stdin means: reap everything and exit.
"""

from __future__ import annotations

import argparse
import os
import platform
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence

import msgspec

from ppscope import __version__
from ppscope.collect.cost import CostMeter
from ppscope.collect.observed import Observed
from ppscope.collect.stream import FrameReader, FrameWriter
from ppscope.records import (
    SCHEMA,
    AnyCommand,
    AnyRecord,
    Attach,
    Clock,
    End,
    Hello,
    Note,
    Quit,
    RankExit,
    Server,
    ServerGone,
    SetRate,
)
from ppscope.sources.base import Emit, Source
from ppscope.sources.idle_cores import IdleCores
from ppscope.sources.stacks_room import FREE, Room
from ppscope.target.errors import AttachError
from ppscope.target.found import Found
from ppscope.target.processes import find_servers, has_ended, resolve

_TICK_S = 1.0
_RESCAN_TICKS = 10
_CANDIDATE_TICKS = 2
_SCAN_REST = 30
_CLOCK_TICKS = 30


class Door:
    """Where the sources of one server hand in their records; once closed it takes none: they would pass for the next server's."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._closed = False

    def __call__(self, record: AnyRecord) -> None:
        """Pass a record on."""
        if not self._closed:
            self._emit(record)

    def close(self) -> None:
        """Take nothing any more."""
        self._closed = True


class Collector:
    """Owns the sources of one server at a time; `run` returns when the view leaves or nothing is left to see."""

    def __init__(
        self, writer: FrameWriter, commands: queue.Queue[AnyCommand], rate_hz: float | None, gives_way: bool = False
    ) -> None:
        self._writer = writer
        self._commands = commands
        self._rate_hz = rate_hz
        self._room = Room(IdleCores().read) if gives_way else FREE
        self._sources: list[Source] = []
        self._door = Door(self.emit)
        self._found: Found | None = None
        self._observed = Observed()
        self._server: Server | None = None
        self._exit_seen = threading.Event()
        self._candidates: tuple[tuple[int, str], ...] | None = None
        self._next_scan_ns = 0

    def emit(self, record: AnyRecord) -> None:
        """Take note of what the joins need and pass the record on."""
        self._observed.note(record)
        if isinstance(record, RankExit) and record.reason not in ("stopped", "resumed"):
            self._exit_seen.set()
        self._writer.put(record)

    def attach(self, pid: int | None) -> None:
        """Find the server of this pid and start observing it. Raises AttachError."""
        found = resolve(pid)
        self._leave()
        self._found = found
        self._observed = Observed()
        self._announce(time.monotonic_ns())
        assert self._server is not None
        self._door = Door(self.emit)
        self._sources = _sources(self._door, self._rate_hz, self._room, self._observed, found)
        for source in self._sources:
            source.start(self._server)
        twins = sum(title.startswith("sglang::scheduler") for _, title in found.others)
        if twins:
            said = f"{twins} more schedulers of the same ranks run under this launcher (a second Engine?): they are not shown"
            self.emit(Note(time.monotonic_ns(), "warning", said))

    def _announce(self, at_ns: int) -> None:
        assert self._found is not None
        server = self._observed.join(self._found, at_ns)
        if self._server is None or _differs(self._server, server):
            self._server, self._candidates = server, None
            self.emit(server)
            for source in self._sources:
                source.update(server)

    def _leave(self) -> None:
        stopping = [threading.Thread(target=source.stop, daemon=True) for source in self._sources]
        for thread in stopping:
            thread.start()
        deadline = time.monotonic() + 2.0
        for thread in stopping:
            thread.join(max(deadline - time.monotonic(), 0.05))
        self._door.close()
        self._sources = []
        self._server = None

    def run(self) -> str:
        """Serve until told to quit; returns the reason for the End record."""
        meter = CostMeter()
        tick = 0
        next_tick = time.monotonic() + _TICK_S
        try:
            while not self._writer.broken.is_set():
                try:
                    command = self._commands.get(timeout=max(next_tick - time.monotonic(), 0.001))
                except queue.Empty:
                    tick += 1
                    next_tick = max(next_tick + _TICK_S, time.monotonic() + _TICK_S / 2)
                    self._tick(tick)
                    children = [pid for source in self._sources for pid in source.children()]
                    self.emit(meter.read(children, self._lowest("rate_hz"), self._lowest("idle_cores")))
                    continue
                if isinstance(command, Quit):
                    return "quit"
                self._obey(command)
            return "quit"
        finally:
            self._leave()

    def _lowest(self, figure: str) -> float | None:
        """The lowest figure of this name among the sources that have one, None when none does."""
        known = [value for source in self._sources if (value := getattr(source, figure, None)) is not None]
        return min(known) if known else None

    def _obey(self, command: AnyCommand) -> None:
        if isinstance(command, Attach):
            try:
                self.attach(command.pid)
            except AttachError as error:
                self.emit(Note(time.monotonic_ns(), "error", str(error)))
            return
        if isinstance(command, SetRate):
            self._rate_hz = command.stack_hz
        for source in self._sources:
            source.obey(command)

    def _tick(self, tick: int) -> None:
        now = time.monotonic_ns()
        if tick % _CLOCK_TICKS == 0:
            self.emit(Clock(now, time.time_ns()))
        if self._found is None:
            return
        if has_ended(self._found.launcher_pid, self._found.launcher_started_ticks):
            first = self._say_gone(now)
            if first or (tick % _CANDIDATE_TICKS == 0 and self._may_scan(now)):
                self._look_for_successor(now)
                self._scanned(now)
            return
        loading = self._server is not None and self._server.state == "loading"
        if self._exit_seen.is_set() or (self._may_scan(now) and (loading or tick % _RESCAN_TICKS == 0)):
            self._exit_seen.clear()
            try:
                self._found = resolve(self._found.launcher_pid)
            except AttachError:
                return
            finally:
                self._scanned(now)
        self._announce(now)

    def _may_scan(self, now: int) -> bool:
        return now >= self._next_scan_ns

    def _scanned(self, since_ns: int) -> None:
        """A look at the whole process table may take a second where tens of thousands run: it takes a small share of the time at most."""
        now = time.monotonic_ns()
        self._next_scan_ns = now + _SCAN_REST * (now - since_ns)

    def _say_gone(self, now: int) -> bool:
        """Tell the sources that the server is over: its port may be somebody else's by now, who is not to be asked, nor sent a key."""
        if self._server is None or self._server.state == "gone":
            return False
        self._server = msgspec.structs.replace(self._server, at_ns=now, state="gone")
        self.emit(self._server)
        for source in self._sources:
            source.update(self._server)
        return True

    def _look_for_successor(self, now: int) -> None:
        assert self._found is not None
        old, gone = self._found, self._found.launcher_pid
        others = [found for found in find_servers() if found.launcher_pid != gone]
        candidates = tuple(
            (found.launcher_pid, found.model or found.kind)
            for found in sorted(others, key=lambda found: likeness(old, found), reverse=True)
        )
        if candidates != self._candidates:
            self._candidates = candidates
            self.emit(ServerGone(now, gone, candidates))


def likeness(old: Found, new: Found) -> tuple[bool, bool, bool, int]:
    """How much a server looks like the successor of one that is gone; the larger the likelier, among equals the youngest."""
    return (
        new.launch_command == old.launch_command,
        new.port is not None and new.port == old.port,
        new.model == old.model,
        new.launcher_started_ticks,
    )


def _differs(old: Server, new: Server) -> bool:
    return any(getattr(old, name) != getattr(new, name) for name in Server.__struct_fields__ if name != "at_ns")


def _sources(emit: Emit, rate_hz: float | None, room: Room, observed: Observed, found: Found) -> list[Source]:
    from ppscope.sources.burst import BurstSource
    from ppscope.sources.gpu import GpuSource
    from ppscope.sources.host import HostSource
    from ppscope.sources.probe import ProbeSource
    from ppscope.sources.rules_source import RulesSource, where_of
    from ppscope.sources.server import ServerSource
    from ppscope.sources.stacks import StackSource
    from ppscope.sources.stacks_dumps import DumpSource

    stacks = StackSource(emit, rate_hz=rate_hz, room=room)
    dumps = DumpSource(emit, table=stacks.table, room=room)
    observed.rank_facts = dumps.rank_facts
    rules = RulesSource(emit, lambda: where_of(found.sglang_path_here, found.launcher_pid))
    return [
        stacks,
        dumps,
        HostSource(emit),
        GpuSource(emit),
        ServerSource(emit),
        ProbeSource(emit),
        rules,
        BurstSource(emit),
    ]


def _read_commands(fd: int, commands: queue.Queue[AnyCommand]) -> None:
    reader: FrameReader[AnyCommand] = FrameReader(AnyCommand, magic=False)
    try:
        while data := os.read(fd, 65536):
            for command in reader.feed(data):
                commands.put(command)
    except (OSError, ValueError):
        pass
    commands.put(Quit())


def _hello() -> Hello:
    return Hello(
        schema=SCHEMA,
        ppscope_version=__version__,
        host=socket.gethostname(),
        mono_ns=time.monotonic_ns(),
        wall_ns=time.time_ns(),
        collector_pid=os.getpid(),
        python=platform.python_version(),
        platform=platform.platform(),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a collector until its stdin ends; the exit status is that of the End record."""
    parser = argparse.ArgumentParser(prog="ppscope-collector")
    parser.add_argument("--pid", type=int, default=None)
    parser.add_argument("--rate", type=float, default=None)
    parser.add_argument("--give-way", action="store_true")
    options = parser.parse_args(argv)
    stream_fd = os.dup(1)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    writer = FrameWriter(stream_fd)
    writer.put(_hello())
    commands: queue.Queue[AnyCommand] = queue.Queue()
    threading.Thread(target=_read_commands, args=(0, commands), name="commands", daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: commands.put(Quit()))
    collector = Collector(writer, commands, options.rate, options.give_way)
    end = End(0, "quit")
    try:
        collector.attach(options.pid)
        end = End(time.monotonic_ns(), collector.run())
    except AttachError as error:
        end = End(time.monotonic_ns(), "attach_failed", error.message, error.remedy, error.exit_code)
    writer.put(end)
    writer.close()
    return end.exit_code


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # a source's thread that hangs in the kernel must not keep the process
