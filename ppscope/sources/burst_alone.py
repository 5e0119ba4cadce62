"""Whether anybody else profiles the server: a second start can end servers up to 0.5.11, and costs later ones the first trace."""

from __future__ import annotations

import calendar
import fcntl
import os
import re
import time

from ppscope.sources.burst_checks import Unfit
from ppscope.sources.server_log import LogError, LogTail
from ppscope.target.procfs import Proc, parse_stat

_BEGIN = b"] server_args="
"""Every launcher's first line (entrypoints/engine.py and http_server.py, 0.5.6 to 0.5.23)."""
_STAMP = re.compile(rb"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_WORD = re.compile(
    _STAMP.pattern + rb"([^\]\n]*)\] (Profiling starts(?! for graph capture)|Stop profiling|Profiling done)"
)
_SURVIVES = (0, 5, 15)
"""From here on the scheduler outlives a second start (profiler_manager.py catches its error), which costs the first its trace."""
_OLD_S = 600


class Turn:
    """The only right of all ppscopes of this node to profile one server, until `end` or the end of this process."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def end(self) -> None:
        """Let the next one have it; may be called twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def take_turn(launcher_pid: int) -> Turn:
    """Raises Unfit while another ppscope has the turn.

    The lock is on the launcher's stat in its own /proc: whoever may profile can open it, also from another container; nobody can put a
    link there, it is of this one process, and it leaves nothing behind. Where no lock can be had all may go on.
    """
    fd = _open_stat(Proc(), launcher_pid)
    if fd is None:
        return Turn(None)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise Unfit("another ppscope profiles this server", "wait until that profile is over") from None
    except OSError:
        os.close(fd)
        return Turn(None)
    return Turn(fd)


def _open_stat(proc: Proc, pid: int) -> int | None:
    status, stat = proc.status(pid), proc.stat(pid)
    inner = status.ns_pids[-1] if status is not None and status.ns_pids else pid
    for path in (proc.path(pid, f"root/proc/{inner}/stat"), proc.path(pid, "stat")):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            found = parse_stat(os.read(fd, 4096))
        except OSError:  # it ended meanwhile
            found = None
        if found is not None and stat is not None and found.started_ticks == stat.started_ticks:
            return fd
        os.close(fd)
    return None


def check_log(launcher_pid: int, version: tuple[int, ...] | None) -> None:
    """Raises Unfit where the end of the server's log tells of a profile that began and did not end."""
    try:
        tail = LogTail.open(launcher_pid)
    except LogError:
        return
    try:
        end = tail.end()
    except OSError:
        return
    finally:
        tail.close()
    if _runs(end, patient=version is not None and version >= _SURVIVES):
        raise Unfit(
            "a profile runs at this server already, by its log: `Profiling starts` without `Profiling done` after it",
            "wait for its end; POST /stop_profile ends one that was forgotten",
        )


def _runs(log: bytes, patient: bool) -> bool:
    """Whether the last word of any rank since the server's start is not that its profile is done.

    A start that failed has no end: where a second start costs nobody the server, an old one is not believed.
    """
    log = log[max(log.rfind(_BEGIN), 0) :]  # what stands above is of an earlier server
    last = {found[2]: (_seconds(found[1]), found[3]) for found in _WORD.finditer(log)}
    stamps = _STAMP.findall(log)
    newest_s = _seconds(stamps[-1]) if stamps else 0
    return any(word != b"Profiling done" and not (patient and newest_s - at_s > _OLD_S) for at_s, word in last.values())


def _seconds(stamp: bytes) -> int:
    try:
        return calendar.timegm(time.strptime(stamp.decode(), "%Y-%m-%d %H:%M:%S"))
    except ValueError:
        return 0
