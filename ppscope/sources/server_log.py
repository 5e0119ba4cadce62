"""Follows the server's log where it is a file: opened through `/proc/PID/fd`, so that namespaces and deleted files work.

A pipe, a terminal or a socket is never opened: reading there would take the lines away from whoever they are for.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

import msgspec

from ppscope.sources.server_log_lines import CANDIDATE, LINE_LIMIT

TAIL_BYTES = 256 << 10
HEAD_BYTES = 4 << 20
TICK_BYTES = 1 << 20


class LogError(Exception):
    """The log cannot be followed; the message says why. `usual` is True where that is how the server was set up."""

    def __init__(self, message: str, usual: bool) -> None:
        super().__init__(message)
        self.usual = usual


class Tick(msgspec.Struct, frozen=True, gc=False):
    """What came since the last look: whole lines worth parsing, bytes passed over because there were too many, a new beginning."""

    lines: tuple[bytes, ...]
    skipped_bytes: int = 0
    restarted: bool = False


class LogTail:
    """Reads one open log file; `close` it."""

    def __init__(self, fd: int, link: str) -> None:
        self._fd = fd
        self._link = link
        status = os.fstat(fd)
        self._identity = (status.st_dev, status.st_ino)
        self._at = 0
        self._partial = b""
        self._discard = False

    @classmethod
    def open(cls, pid: int, fd_folder: str = "/proc/{pid}/fd") -> LogTail:
        """Open the log of process `pid`: stderr, where Python's logging writes, else stdout. Raises LogError."""
        folder = fd_folder.format(pid=pid)
        kinds = []
        for number in (2, 1):
            link = f"{folder}/{number}"
            try:
                status = os.stat(link)
                if not stat.S_ISREG(status.st_mode):
                    kinds.append(_kind(status, link))
                    continue
                fd = os.open(link, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
            except PermissionError as error:
                raise LogError("no permission to read the server's log", usual=False) from error
            except FileNotFoundError:
                kinds.append("closed")
                continue
            except OSError as error:
                raise LogError(f"the server's log cannot be opened: {error.strerror}", usual=False) from error
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return cls(fd, link)
            os.close(fd)
        raise LogError(f"the log is not a file ({kinds[0] if kinds else 'unknown'})", usual=True)

    def head(self) -> Iterator[bytes]:
        """Lines worth parsing from the first 4 MB, as far as the tail does not bring them."""
        end = min(HEAD_BYTES, max(os.fstat(self._fd).st_size - TAIL_BYTES, 0))
        at, partial = 0, b""
        while at < end:
            data = os.pread(self._fd, min(TICK_BYTES, end - at), at)
            if not data:
                return
            at += len(data)
            lines, partial = _whole_lines(partial + data)
            partial = partial[-LINE_LIMIT - 1 :]
            yield from candidates(lines)

    def start(self) -> Tick:
        """Go to 256 kB before the end and read from there."""
        size = os.fstat(self._fd).st_size
        self._at = max(size - TAIL_BYTES, 0)
        self._discard = self._at > 0
        return self.poll()

    def poll(self) -> Tick:
        """Read what was appended, at most 1 MB of it; of more only the newest 1 MB is read."""
        size = os.fstat(self._fd).st_size
        restarted = size < self._at
        if restarted:
            self._at, self._partial, self._discard = 0, b"", False
        skipped = max(size - self._at - TICK_BYTES, 0)
        if skipped:
            self._at += skipped
            self._partial, self._discard = b"", True
        data = os.pread(self._fd, min(size - self._at, TICK_BYTES), self._at) if size > self._at else b""
        self._at += len(data)
        lines, self._partial = _whole_lines(self._partial + data)
        if self._discard and lines:
            lines = lines[lines.index(b"\n") + 1 :]
            self._discard = False
        if len(self._partial) > LINE_LIMIT:
            self._partial, self._discard = b"", True
        return Tick(tuple(candidates(lines)), skipped, restarted)

    def end(self) -> bytes:
        """The last 256 kB as they are."""
        size = os.fstat(self._fd).st_size
        return os.pread(self._fd, min(size, TAIL_BYTES), max(size - TAIL_BYTES, 0))

    def modified_ns(self) -> int:
        """When the file was last written, wall time in ns."""
        return os.fstat(self._fd).st_mtime_ns

    def moved(self) -> bool:
        """Whether the server writes to another file by now."""
        try:
            status = os.stat(self._link)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) != self._identity

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def candidates(block: bytes) -> Iterator[bytes]:
    """The lines of a block that may be of interest, found without looking at the others one by one."""
    end = 0
    for found in CANDIDATE.finditer(block):
        if found.start() < end:
            continue
        start = block.rfind(b"\n", 0, found.start()) + 1
        end = block.find(b"\n", found.end())
        end = len(block) if end < 0 else end
        yield block[start:end].rstrip(b"\r")


def _whole_lines(data: bytes) -> tuple[bytes, bytes]:
    cut = data.rfind(b"\n") + 1
    return data[:cut], data[cut:]


def _kind(status: os.stat_result, link: str) -> str:
    mode = status.st_mode
    if stat.S_ISCHR(mode):
        try:
            null = os.stat("/dev/null")
        except OSError:
            return "a terminal"
        return "/dev/null" if status.st_rdev == null.st_rdev else "a terminal"
    if stat.S_ISFIFO(mode):
        return "a pipe"
    return "a socket" if stat.S_ISSOCK(mode) else "something else"
