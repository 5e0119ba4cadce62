"""The view's end of the stream: starts a collector (or reads a recording) and hands over what has arrived."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ppscope.collect.stream import FrameReader, StreamError, encode
from ppscope.exits import CANNOT_ATTACH
from ppscope.records import AnyCommand, AnyRecord, End, Quit
from ppscope.signals import killer

_READ_BYTES = 256 * 1024
_LAST_WORDS_S = 1.0


class RecordStream(Protocol):
    """Where a session's records come from."""

    live: bool

    def drain(self) -> list[AnyRecord]:
        """Records that have arrived since the last call; returns at once."""

    def wait(self, timeout_s: float) -> bool:
        """Wait until something has arrived; False after the time."""

    def send(self, command: AnyCommand) -> None:
        """Pass a command to the collector."""

    def close(self) -> None:
        """End the collector and wait, for about three seconds at most."""


def collector_arguments(pid: int | None, rate_hz: float | None, gives_way: bool = False) -> list[str]:
    """What a collector is started with: a rate of None is the usual one; one that `gives_way` takes less where few cores are idle."""
    rate = ["--rate", str(rate_hz)] if rate_hz is not None else []
    way = ["--give-way"] if gives_way else []
    return [*rate, *way, *(["--pid", str(pid)] if pid is not None else [])]


class CollectorProcess:
    """A collector child: records from its stdout, commands to its stdin.

    It runs in a session of its own, so that neither ctrl-c nor a closed terminal hits it: the end of its stdin does.
    """

    live = True

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arrived: deque[AnyRecord] = deque()
        self._news = threading.Condition()
        self._eof = False
        self._complaint = deque[str](maxlen=20)
        self._listener = threading.Thread(target=self._listen, name="collector-stderr", daemon=True)
        self._process = self._start(arguments)
        if self._process is not None:
            self._listener.start()
            threading.Thread(target=self._read, name="stream-reader", daemon=True).start()

    def _start(self, arguments: Sequence[str]) -> subprocess.Popen[bytes] | None:
        """None when it cannot be started: then the stream says so and is over, as for one that ended at once."""
        safe = ["-P"] if sys.version_info >= (3, 11) else []
        try:
            return subprocess.Popen(
                [sys.executable, *safe, "-m", "ppscope.collect.collector", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        except OSError as error:
            why = f"the collector does not start: {sys.executable}: {error.strerror or error}"
            self._arrived.append(End(0, "error", why, exit_code=CANNOT_ATTACH))
            self._eof = True
            return None

    @property
    def pid(self) -> int | None:
        """The collector's pid, None when it could not be started."""
        return None if self._process is None else self._process.pid

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        reader: FrameReader[AnyRecord] = FrameReader(AnyRecord)
        ended = False
        try:
            while data := os.read(fd, _READ_BYTES):
                records = list(reader.feed(data))
                ended = ended or any(isinstance(record, End) for record in records)
                self._deliver(records)
        except (OSError, StreamError) as error:
            self._complaint.append(str(error))
        if not ended:
            why = f"the collector ended unexpectedly: {self._reason(self._process)}"
            self._deliver([End(0, "error", why, exit_code=CANNOT_ATTACH)])
        with self._news:
            self._eof = True
            self._news.notify_all()

    def _reason(self, process: subprocess.Popen[bytes]) -> str:
        """What killed it, or its last word."""
        self._listener.join(_LAST_WORDS_S)
        try:
            killed_by = killer(process.wait(_LAST_WORDS_S))
        except subprocess.TimeoutExpired:  # it closed its stdout and lives
            killed_by = None
        if killed_by is not None:
            return f"killed by {killed_by}"
        return self._complaint[-1] if self._complaint else "no reason given"

    def _deliver(self, records: list[AnyRecord]) -> None:
        if records:
            with self._news:
                self._arrived.extend(records)
                self._news.notify_all()

    def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if said := line.decode(errors="replace").strip():
                self._complaint.append(said)

    def drain(self) -> list[AnyRecord]:
        """Records that have arrived since the last call."""
        with self._news:
            records = list(self._arrived)
            self._arrived.clear()
        return records

    def wait(self, timeout_s: float) -> bool:
        """Wait until records are there or the stream is over; False after the time."""
        with self._news:
            return self._news.wait_for(lambda: bool(self._arrived) or self._eof, timeout_s)

    def send(self, command: AnyCommand) -> None:
        """Pass a command; a collector that is gone has said so in the stream."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode(command))
            self._process.stdin.flush()
        except (OSError, ValueError):
            return

    def close(self) -> None:
        """Ask it to quit, close its stdin and wait; kill it when it does not end in time."""
        if self._process is None:
            return
        self.send(Quit())
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass
        try:
            self._process.wait(2.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(1.0)
        # Its last words are still on their way through the reading thread.
        with self._news:
            self._news.wait_for(lambda: self._eof, 0.5)


class RecordedStream:
    """A recording, all of it at once."""

    live = False

    def __init__(self, records: list[AnyRecord]) -> None:
        self._records = records

    @classmethod
    def open(cls, path: Path) -> RecordedStream:
        """Read a `.pps` file up to where it is cut. Raises StreamError for a foreign file, OSError as open() does."""
        reader: FrameReader[AnyRecord] = FrameReader(AnyRecord)
        records: list[AnyRecord] = []
        with path.open("rb") as file:
            while data := file.read(_READ_BYTES):
                records.extend(reader.feed(data))
        if not records:
            raise StreamError(f"{path} is not a ppscope recording")
        return cls(records)

    def drain(self) -> list[AnyRecord]:
        """Every record, the first time."""
        records, self._records = self._records, []
        return records

    def wait(self, timeout_s: float) -> bool:
        """Everything is there already."""
        return bool(self._records)

    def send(self, command: AnyCommand) -> None:
        """Nobody listens."""

    def close(self) -> None:
        """Nothing to end."""
