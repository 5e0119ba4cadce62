"""Finding the probe's files of a rank: opened part by part, no link followed, and only what belongs to the server's own user."""

from __future__ import annotations

import os
import stat

from ppscope.probe import layout
from ppscope.records import Rank

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
SHM = ("dev", "shm")


class RefusedError(Exception):
    """The probe's files are there and must not be read; `remedy` says what to do."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class NoProbeError(Exception):
    """This process has no probe."""


def _user_of(pid: int) -> int | None:
    # /proc/PID itself is root's where the process is not dumpable; the status file tells the effective uid.
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("Uid:"):
                    return int(line.split()[2])
    except (OSError, ValueError, IndexError):
        return None
    return None


def _own_number(pid: int, uid: int) -> int:
    """The number that a process in a user namespace (rootless containers) knows its user by; ours where it has none of its own."""
    try:
        if os.readlink(f"/proc/{pid}/ns/user") == os.readlink("/proc/self/ns/user"):
            return uid  # the map is from the namespace above to this one
    except OSError:
        pass
    try:
        with open(f"/proc/{pid}/uid_map", encoding="ascii") as file:
            for line in file:
                inside, outside, count = map(int, line.split())
                if outside <= uid < outside + count:
                    return inside + uid - outside
    except (OSError, ValueError):
        pass
    return uid


def _walk(root: str, parts: tuple[str, ...]) -> int:
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in parts:
        try:
            deeper = os.open(part, _DIRECTORY, dir_fd=folder)
        finally:
            os.close(folder)
        folder = deeper
    return folder


def open_folder(rank: Rank, parts: tuple[str, ...] = SHM, root: str | None = None) -> int:
    """Descriptor of the private folder in the rank's own mount namespace. Raises NoProbeError and RefusedError.

    `root` replaces the process's root folder, `parts` the way from there to the shared memory.
    """
    uid = _user_of(rank.pid)
    if uid is None:
        raise NoProbeError
    name = layout.FOLDER.format(uid=_own_number(rank.pid, uid))
    where = "/" + "/".join((*parts, name))
    try:
        folder = _walk(root or f"/proc/{rank.pid}/root", (*parts, name))
    except FileNotFoundError:
        raise NoProbeError from None
    except PermissionError:
        if os.geteuid() == uid:
            raise RefusedError(f"{where} cannot be opened") from None
        raise RefusedError(
            f"the probe's data belong to user {uid}, this is user {os.geteuid()}", "run ppscope as the server's user"
        ) from None
    except OSError as error:
        raise RefusedError(f"{where}: {error.strerror}") from None
    status = os.fstat(folder)
    if status.st_uid != uid or stat.S_IMODE(status.st_mode) & 0o077 or os.geteuid() not in (uid, 0):
        os.close(folder)
        if os.geteuid() not in (uid, 0):
            raise RefusedError(
                f"the probe's data belong to user {uid}, this is user {os.geteuid()}",
                "run ppscope as the server's user",
            )
        raise RefusedError(f"{where} is not a private folder of user {uid}")
    return folder


def open_file(folder: int, kind: str, rank: Rank, flags: int) -> int | None:
    """Descriptor of a rank's ring or wanted file, None when there is none. Raises RefusedError."""
    # The name starts with the pid namespace, which the probe knows better; the pid is the process's own view of it.
    end = f"-{rank.ns_pid or rank.pid}-{rank.started_ticks}"
    for name in os.listdir(folder):
        if name.startswith(kind + "-") and name.endswith(end):
            try:
                fd = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise RefusedError(f"{name}: {error.strerror}") from None
            status, owner = os.fstat(fd), os.fstat(folder).st_uid
            if not stat.S_ISREG(status.st_mode) or status.st_uid != owner:
                os.close(fd)
                raise RefusedError(f"{name} is not a file of the folder's owner")
            return fd
    return None
