"""The folder of a burst: one the schedulers' user can write to and we can read, seen from both mount namespaces."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

from ppscope.target.entering import Who, barred, who
from ppscope.target.procfs import Proc

VARIABLE = "PPSCOPE_PROFILE_FOLDER"
NAME = "ppscope-profile-"
KEPT = "kept"
"""A folder with this file in it holds what the user keeps: no burst sweeps it. A file, for a stage may still write to it by its name."""
PARENTS = ("/tmp", "/var/tmp")
"""Not /dev/shm: it is memory, and NCCL and torch of the server need what is left of it."""
LEAST_FREE_BYTES = 1 << 30
"""An export that runs out of room raises in the scheduler, which ends the server."""
STALE_S = 3600.0


class FolderError(Exception):
    """There is no folder that will do; `remedy` is what to try."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class Folder(NamedTuple):
    """`there` is the path as the server sees it, `here` the same folder as it can be opened from here."""

    there: str
    here: str


def make_folder(pid: int, environment: Mapping[str, str] | None = None, proc_root: str = "/proc") -> Folder:
    """Makes an empty folder for the scheduler `pid` to write to. Raises FolderError.

    It belongs to the scheduler's user where we may give it away; otherwise everybody may create files in it, and only its owner may
    list them.
    """
    chosen = (os.environ if environment is None else environment).get(VARIABLE)
    parents = (chosen,) if chosen else PARENTS
    proc = Proc(proc_root)
    root = root_of(proc, pid)
    status = proc.status(pid)
    uid = None if status is None else status.uid
    visitor = who(proc, pid)
    reasons = []
    for parent in parents:
        try:
            if why := not_entered(parent, root, visitor):
                raise PermissionError(errno.EACCES, why)
            return _make(parent, root, uid)
        except OSError as error:
            reasons.append(f"{parent}: {error.strerror or error}")
    raise FolderError(
        f"no folder for the traces: {'; '.join(reasons)}",
        f"set {VARIABLE} to a folder that the server's user can write to",
    )


def remove_stale(folder: Folder) -> None:
    """Removes what earlier bursts left beside this folder and where else they may have been: ours alone, after an hour without change."""
    root = folder.here[: len(folder.here) - len(folder.there)]
    for parent in dict.fromkeys((os.path.dirname(folder.there), *PARENTS)):
        at = root + parent
        # A link in the other tree would lead into ours.
        if not (root and os.path.islink(at)):
            _sweep(at, folder)


def _sweep(parent: str, folder: Folder) -> None:
    try:
        names = [name for name in os.listdir(parent) if name.startswith(NAME)]
    except OSError:
        return
    for name in names:
        path = os.path.join(parent, name)
        try:
            found = os.lstat(path)
            ours = stat.S_ISDIR(found.st_mode) and found.st_uid in (os.geteuid(), os.lstat(folder.here).st_uid)
            kept = os.path.lexists(os.path.join(path, KEPT))
            if ours and not kept and path != folder.here and time.time() - found.st_mtime > STALE_S:
                remove(Folder(path, path))
        except OSError:
            continue


def keep(folder: Folder) -> None:
    """Have no later burst sweep it; where that cannot be written it is as any other."""
    with suppress(OSError), _opened(folder) as fd:
        os.close(os.open(KEPT, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=fd))


def remove(folder: Folder) -> str | None:
    """Removes the folder and the trace files in it, nothing else; returns why it is still there, None when it is gone."""
    try:
        with _opened(folder) as fd:
            for name in os.listdir(fd):
                if ".trace.json" in name or name == KEPT:
                    os.unlink(name, dir_fd=fd)
        os.rmdir(folder.here)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror or str(error)
    return None


@contextmanager
def _opened(folder: Folder) -> Iterator[int]:
    # Who owns the folder may put a link in its place at any time, and we may be root.
    fd = os.open(folder.here, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def root_of(proc: Proc, pid: int) -> str:
    """Where a process's file tree begins: empty for our own, /proc/PID/root for another. Raises FolderError."""
    ours, theirs = proc.link("self", "ns/mnt"), proc.link(pid, "ns/mnt")
    if theirs is None and proc.exists(pid):
        raise FolderError("the server's mount namespace cannot be read", "run ppscope as the server's user or as root")
    if theirs is None:
        raise FolderError(f"scheduler {pid} is gone")
    here = proc.path(pid, "root")
    try:
        same_root = os.path.samestat(os.stat(here), os.stat("/"))
    except OSError as error:
        raise FolderError(
            f"the server's file tree cannot be opened: {error.strerror}", "run ppscope as root"
        ) from error
    return "" if ours == theirs and same_root else here


def not_entered(parent: str, root: str, visitor: Who | None) -> str:
    """Why the server's user does not come to a folder, by itself or one above it; empty when that is not known."""
    folder = None if visitor is None else barred(parent, root, visitor)
    return "" if folder is None else f"the server's user may not enter {folder}"


def _make(parent: str, root: str, uid: int | None) -> Folder:
    at = root + parent
    # A link in the other tree would lead into ours.
    kind = os.lstat(at) if root else os.stat(at)
    if not stat.S_ISDIR(kind.st_mode):
        raise NotADirectoryError(20, "not a folder")
    room = os.statvfs(at)
    if room.f_bavail * room.f_frsize < LEAST_FREE_BYTES:
        raise OSError(28, "less than 1 GB is free")
    name = NAME + secrets.token_hex(8)
    folder = Folder(os.path.join(parent, name), os.path.join(at, name))
    os.mkdir(folder.here, 0o700)
    try:
        _hand_over(folder.here, uid)
    except OSError:
        os.rmdir(folder.here)
        raise
    return folder


def _hand_over(path: str, uid: int | None) -> None:
    if uid in (os.geteuid(), 0):
        return
    if uid is not None and os.geteuid() == 0:
        os.chown(path, uid, -1)
        return
    os.chmod(path, 0o1733)
