"""The worker that follows the server's log and turns its lines into records."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from ppscope.records import BatchLog, LogNote
from ppscope.sources.server_load import LogLoad
from ppscope.sources.server_log import LogError, LogTail
from ppscope.sources.server_log_lines import parse_line, split_prefix
from ppscope.sources.server_worker import Desk, Worker

EVERY_S = 0.25
RETRY_S = 5.0
MOVED_EVERY_S = 10.0
QUARTER_NS = 900 * 1_000_000_000
SLACK_NS = 3 * 1_000_000_000
METRICS_FRESH_NS = 5 * 1_000_000_000


class LogWorker(Worker):
    """Follows the log of the server's launcher, whose stdout and stderr the schedulers inherit."""

    name = "log"

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._tail: LogTail | None = None
        self._pid = 0
        self._offset_ns: int | None = None
        self._load = LogLoad()
        self._skipped_until = 0.0
        self._moved_due = 0.0

    def turn(self) -> float:
        """Read what was appended, opening the log first where need be."""
        now = time.monotonic()
        if self._tail is not None and (
            self._pid != self.desk.server.launcher_pid or (now >= self._moved_due and self._tail.moved())
        ):
            self.finish()
        if self._tail is None:
            return self._open()
        if now >= self._moved_due:
            self._moved_due = now + MOVED_EVERY_S
        try:
            tick = self._tail.poll()
        except OSError as error:
            self.finish()
            self.desk.say("log", "degraded", f"the log cannot be read: {error.strerror}")
            return RETRY_S
        self._live(tick.lines)
        if tick.skipped_bytes:
            self._skipped_until = now + 10.0
            self.desk.say("log", "degraded", "the log grows faster than it is read: lines were passed over")
        elif now >= self._skipped_until:
            self.desk.say("log", "ok", "the log was cut and began again" if tick.restarted else "")
        return EVERY_S

    def finish(self) -> None:
        """Close the log."""
        self.desk.log_followed = False
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _open(self) -> float:
        server = self.desk.server
        try:
            self._tail = LogTail.open(server.launcher_pid)
        except LogError as error:
            self.desk.say("log", "off" if error.usual else "degraded", str(error))
            return RETRY_S
        self._pid = server.launcher_pid
        self._moved_due = time.monotonic() + MOVED_EVERY_S
        head = list(self._tail.head())
        tick = self._tail.start()
        self._offset_ns = utc_offset_ns(tick.lines or head, self._tail.modified_ns())
        self._history(head, batches=False)
        self._history(tick.lines, batches=True)
        self.desk.log_followed = True
        self.desk.say("log", "ok")
        return EVERY_S

    def _history(self, lines: Iterable[bytes], batches: bool) -> None:
        """Lines from before now, at the time they name; those of an earlier run in the same file are left out."""
        now_ns, wall_ns = time.monotonic_ns(), time.time_ns()
        begun_ns = started_wall_ns(self.desk.server.launcher_started_ticks)
        current = True
        for line in lines:
            stamp, _ = split_prefix(line[:200].decode("utf-8", "replace"))
            at_ns = now_ns
            if stamp is not None and self._offset_ns is not None:
                said_ns = stamp.naive_ns - self._offset_ns
                current = begun_ns is None or said_ns >= begun_ns - SLACK_NS
                at_ns = min(now_ns, now_ns - (wall_ns - said_ns))
            elif begun_ns is not None:
                at_ns = min(now_ns, now_ns - (wall_ns - begun_ns))
            if not current:
                continue
            record = parse_line(line, at_ns, self._offset_ns)
            if isinstance(record, LogNote) or (batches and record is not None):
                self.desk.emit(record)

    def _live(self, lines: Iterable[bytes]) -> None:
        at_ns = time.monotonic_ns()
        for line in lines:
            if self._offset_ns is None:
                self._offset_ns = utc_offset_ns((line,), time.time_ns())
            record = parse_line(line, at_ns, self._offset_ns)
            if record is None:
                continue
            self.desk.emit(record)
            metrics_ns = self.desk.metrics_ok_ns
            if isinstance(record, BatchLog) and (metrics_ns is None or at_ns - metrics_ns > METRICS_FRESH_NS):
                for sample in self._load.update(record, self.desk.server.pp_size):
                    self.desk.emit(sample)


def utc_offset_ns(lines: Iterable[bytes], wall_ns: int) -> int | None:
    """The server's offset from UTC, to a quarter of an hour, from the last stamped line written at about `wall_ns`."""
    naive_ns = None
    for line in lines:
        stamp, _ = split_prefix(line[:200].decode("utf-8", "replace"))
        naive_ns = stamp.naive_ns if stamp is not None else naive_ns
    if naive_ns is None:
        return None
    offset_ns = round((naive_ns - wall_ns) / QUARTER_NS) * QUARTER_NS
    return offset_ns if abs(offset_ns) <= 15 * 4 * QUARTER_NS else None


def started_wall_ns(started_ticks: int) -> int | None:
    """Wall time of a process's start from /proc's start time; None for 0."""
    if started_ticks <= 0:
        return None
    since_boot_ns = started_ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + since_boot_ns
