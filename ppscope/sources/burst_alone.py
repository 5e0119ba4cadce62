"""Whether anybody else profiles the server: a second start can end servers up to 0.5.11, and costs later ones the first trace."""

from __future__ import annotations

import fcntl
import os

from ppscope.records import LogNote
from ppscope.sources.burst_checks import Unfit
from ppscope.sources.server_follow import SLACK_NS, started_wall_ns, utc_offset_ns
from ppscope.sources.server_log import LogError, LogTail
from ppscope.sources.server_log_lines import parse_line, split_prefix
from ppscope.target.procfs import Proc, parse_stat


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
        found = parse_stat(os.read(fd, 4096))
        if found is not None and stat is not None and found.started_ticks == stat.started_ticks:
            return fd
        os.close(fd)
    return None


def check_log(launcher_pid: int, started_ticks: int) -> None:
    """Raises Unfit where the end of the server's log tells of a profile that began and did not end."""
    try:
        tail = LogTail.open(launcher_pid)
    except LogError:
        return
    try:
        lines = tail.start().lines
        offset_ns = utc_offset_ns(lines, tail.modified_ns())
    except OSError:
        return
    finally:
        tail.close()
    if _runs(lines, offset_ns, started_wall_ns(started_ticks)):
        raise Unfit(
            "a profile runs at this server already, by its log: `Profiling starts` without `Profiling done` after it",
            "wait for its end; POST /stop_profile ends one that was forgotten",
        )


def _runs(lines: tuple[bytes, ...], offset_ns: int | None, begun_ns: int | None) -> bool:
    """Whether the last word of any rank is not that its profile is done; lines from before `begun_ns` are of an earlier server."""
    last: dict[tuple[tuple[str, int], ...], str] = {}
    for line in lines:
        stamp, _ = split_prefix(line[:200].decode("utf-8", "replace"))
        note = parse_line(line, 0, None)
        if stamp is None or not isinstance(note, LogNote) or note.kind != "profile":
            continue
        if begun_ns is None or offset_ns is None or stamp.naive_ns - offset_ns >= begun_ns - SLACK_NS:
            last[tuple(sorted(stamp.ranks.items()))] = note.text
    return any(text != "Profiling done" for text in last.values())
