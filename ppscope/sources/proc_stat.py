"""Reading /proc/PID/stat and its like cheaply: on open descriptors, without psutil's objects."""

from __future__ import annotations

import os
from typing import NamedTuple

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGESIZE")
STAT_BYTES = 1024
"""More than a stat line of 52 numbers has."""


class Stat(NamedTuple):
    """The fields of /proc/PID/stat (or task/TID/stat) that matter here; proc(5) fields 3, 14+15, 20, 22, 24."""

    state: str
    cpu_ns: int
    threads: int
    started_ticks: int
    rss_bytes: int


def parse_stat(line: bytes) -> Stat | None:
    """The fields of a stat line, None when it is not one. The command name may hold spaces and parentheses."""
    fields = line[line.rfind(b")") + 1 :].split()
    try:
        ticks = int(fields[11]) + int(fields[12])
        rss_bytes = int(fields[21]) * PAGE_BYTES
        return Stat(fields[0].decode("ascii"), ticks * TICK_NS, int(fields[17]), int(fields[19]), rss_bytes)
    except (IndexError, ValueError):
        return None


def parse_thread(line: bytes) -> tuple[str, int | None] | None:
    """State letter and last processor (field 39) of a stat line, the two that are read most often."""
    after = line.rfind(b")") + 2
    state = line[after : after + 1]
    if after < 3 or not state.isalpha():
        return None
    tail = line.rsplit(None, 14)
    # 52 fields since Linux 3.5; a kernel that writes more or fewer gives no processor rather than a wrong one.
    if len(tail) != 15 or line.count(b" ", after) != 49 or not tail[1].isdigit() or len(tail[1]) > 9:
        return state.decode("ascii"), None
    return state.decode("ascii"), int(tail[1])


def parse_schedstat(line: bytes) -> tuple[int, int] | None:
    """Nanoseconds run and nanoseconds waited for a core; None when the kernel does not keep them."""
    fields = line.split()
    if len(fields) != 3 or fields == [b"0", b"0", b"0"]:
        return None
    try:
        return int(fields[0]), int(fields[1])
    except ValueError:
        return None


def read_stat(pid: int, proc: str = "/proc") -> Stat | None:
    """The stat line of a process; None when it is gone or not to be read."""
    try:
        with open(f"{proc}/{pid}/stat", "rb", buffering=0) as file:
            return parse_stat(file.read(STAT_BYTES))
    except OSError:
        return None


def cpu_seconds(pid: int) -> float | None:
    """User and system time of all threads of a process, to a tick (10 ms); None when it is gone."""
    stat = read_stat(pid)
    return None if stat is None else stat.cpu_ns / 1e9
