"""The ring file of this process: made, reserved and mapped once, then only written to."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import stat
import threading
import time
from collections.abc import Mapping

from . import layout

SHM = "/dev/shm"
_SPARE_BYTES = 8 * 1024 * 1024
"""What is left free in /dev/shm: NCCL and torch need it more than we do."""


class RingError(Exception):
    """There can be no ring here; the message says why."""


def started_ticks(pid: int | str = "self") -> int | None:
    """Start time of a process in clock ticks since boot; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def pid_namespace() -> int:
    """Inode of this process's pid namespace, 0 where it cannot be read."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def name_of(kind: str, namespace: int, pid: int, ticks: int) -> str:
    """File name of a process's ring or wanted file."""
    return f"{kind}-{namespace}-{pid}-{ticks}"


def open_folder(base: str = SHM) -> int:
    """Make or open the private folder; returns a descriptor. Raises RingError when it is not ours alone."""
    path = os.path.join(base, layout.FOLDER.format(uid=os.getuid()))
    try:
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise RingError(f"{path}: {error.strerror}") from None
    status = os.fstat(folder)
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        os.close(folder)
        raise RingError(f"{path} is not a private folder of this user")
    return folder


def hold(fd: int, offset: int) -> None:
    """Lock a file of ours for as long as it is open or mapped, and write into it that it is locked."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.pwrite(fd, layout.LOCKED, offset)
    except OSError:
        return  # without these words no other pid namespace removes it


def sweep(folder: int) -> int:
    """Remove what processes that are gone left behind; returns how many files.

    Those of this pid namespace are known by /proc, those of others (containers that share /dev/shm) by a lock that nobody holds.
    """
    removed, here = 0, pid_namespace()
    try:
        names = os.listdir(folder)
    except OSError:
        return 0
    for name in names:
        kind, *parts = name.split("-")
        if kind not in (layout.RING, layout.WANTED) or len(parts) != 3 or not all(map(str.isdecimal, parts)):
            continue
        namespace, pid, ticks = map(int, parts)
        try:
            if started_ticks(pid) != ticks if here and namespace == here else _let_go(folder, name, kind):
                os.unlink(name, dir_fd=folder)
                removed += 1
        except OSError:
            continue
    return removed


def _let_go(folder: int, name: str, kind: str) -> bool:
    """Whether a file's owner locked it and holds it no more."""
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        offset = layout.LOCKED_OFFSET if kind == layout.RING else 0
        if os.pread(fd, len(layout.LOCKED), offset) != layout.LOCKED:
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    finally:
        os.close(fd)


class Ring:
    """The mapped file of this process. `ranks` are (dp, pp, tp), -1 where not known; `slots` the micro-batch slots, -1 likewise."""

    def __init__(
        self,
        folder: int,
        *,
        ranks: tuple[int, int, int],
        slots: int,
        flags: int,
        capacity: int = layout.CAPACITY,
    ) -> None:
        self.capacity = capacity
        ticks = started_ticks()
        if ticks is None:
            raise RingError("/proc/self/stat cannot be read")
        size = layout.HEADER_BYTES + capacity * layout.RECORD.size
        name = name_of(layout.RING, pid_namespace(), os.getpid(), ticks)
        try:
            space = os.fstatvfs(folder)
            if space.f_bavail * space.f_frsize < size + _SPARE_BYTES:
                raise RingError("/dev/shm is full")
            flags_open = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                os.unlink(name, dir_fd=folder)
            except FileNotFoundError:
                pass
            fd = os.open(name, flags_open, 0o600, dir_fd=folder)
            try:
                # Reserved whole: a page that is missing when it is first touched would be a SIGBUS in the server.
                os.posix_fallocate(fd, 0, size)
                hold(fd, layout.LOCKED_OFFSET)
                self.map = mmap.mmap(fd, size)  # keeps the file open, and so locked
            except (OSError, ValueError):
                os.unlink(name, dir_fd=folder)
                raise
            finally:
                os.close(fd)
        except (OSError, ValueError) as error:
            raise RingError(f"no ring in /dev/shm: {error}") from None
        self.pid = os.getpid()
        header = layout.FIXED.pack(
            b"", layout.VERSION, layout.RECORD.size, capacity, flags, self.pid, threading.get_native_id(), ticks,
            time.monotonic_ns(), pid_namespace(), *ranks, slots, time.CLOCK_MONOTONIC, 0,
        )  # fmt: skip
        self.map[: len(header)] = header
        self.map[: len(layout.MAGIC)] = layout.MAGIC  # last: a reader takes no file without it

    def set_flags(self, flags: int) -> None:
        """Say whether the probe is awake, always on, and timing the GPU."""
        layout.FLAGS.pack_into(self.map, layout.FLAGS_OFFSET, flags)

    def set_text(self, facts: Mapping[str, object]) -> None:
        """Write what was wrapped and what went wrong, cut to whole lists that fit the header."""
        values = dict(facts)
        text = json.dumps(values).encode()
        for key in ("missing", "wrapped"):
            if len(text) > layout.TEXT_LIMIT:
                values[key] = []
                text = json.dumps(values).encode()
        if len(text) > layout.TEXT_LIMIT:
            text = b"{}"
        layout.FLAGS.pack_into(self.map, layout.TEXT_BYTES_OFFSET, 0)
        self.map[layout.TEXT_OFFSET : layout.TEXT_OFFSET + len(text)] = text
        layout.FLAGS.pack_into(self.map, layout.TEXT_BYTES_OFFSET, len(text))
