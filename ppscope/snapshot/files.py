"""Files that only their owner can read, written whole or not at all; a link under the name is replaced, never followed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

from ppscope.target.procfs import user_name

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def named(path: Path) -> str:
    """A path for a message: on one line, and without what would move a terminal's cursor."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in str(path))


def why_not_writable(path: Path) -> str | None:
    """Why nothing can be written under this name, None when it can: told before any time is spent on what to write."""
    folder = path.parent
    if not folder.is_dir():
        return f"{named(folder)} is not a folder"
    if folder.stat().st_nlink == 0:
        return f"{named(folder)} has been removed"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"no permission to write in {named(folder)}"
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    except OSError as error:
        return f"{named(path)}: {error.strerror}"
    if stat.S_ISDIR(mode):
        return f"{named(path)} is a folder"
    if not stat.S_ISREG(mode) or _of_the_kernel(folder):
        # A link is replaced, not followed: under /dev that would be /dev/stdout of the whole machine.
        return f"{named(path)} is not a regular file"
    return None


def _of_the_kernel(folder: Path) -> bool:
    """Whether a folder holds devices and processes, not files; /dev/shm holds files."""
    parts = folder.resolve().parts
    return parts[1:2] in (("dev",), ("proc",), ("sys",)) and parts[1:3] != ("dev", "shm")


def why_not_over(path: Path, sources: Iterable[Path]) -> str | None:
    """The same, and why nothing may be written over one of the files that it is made from."""
    for source in sources:
        try:
            if path.exists() and source.exists() and path.samefile(source):
                return f"{named(path)} is read and cannot be written over"
        except OSError:
            continue
    return why_not_writable(path)


def open_private(path: Path) -> int:
    """A new file of mode 0600 under a name of its own beside `path`, opened for writing and put in the place of `path` at once.

    Its descriptor; what is written to it is there for a reader as it comes. Until it is closed, `why_in_use` says so.
    Raises OSError.
    """
    fd, temporary = _create(path)
    try:
        with contextlib.suppress(OSError):  # not every file system has locks
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _put_in_place(temporary, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def why_in_use(path: Path) -> str | None:
    """Why somebody may be writing the file of this name, as `open_private` begins one; None where nobody is known to."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        owner = other_owner(path)
        return f"belongs to user {owner} and may be in use" if owner else "cannot be read and may be in use"
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        in_use = error.errno in (errno.EWOULDBLOCK, errno.EAGAIN)
        return "another ppscope is recording into it" if in_use else None
    finally:
        os.close(fd)
    return None


def other_owner(path: Path) -> str | None:
    """The user whose file it is; None when it is ours, or that cannot be told."""
    try:
        uid = path.stat().st_uid
    except OSError:
        return None
    return None if uid == os.geteuid() else user_name(uid)


def identity(file: Path | int) -> tuple[int, int] | None:
    """Which file a name or a descriptor stands for, a link for itself; None for none."""
    try:
        found = os.fstat(file) if isinstance(file, int) else os.lstat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def write_private(path: Path, data: bytes) -> None:
    """Write a file of mode 0600 so that a reader sees all of it or what was there before. Raises OSError."""
    _put_in_place(_written(path, data), path)


def write_new(path: Path, data: bytes) -> Path:
    """The same, but what is there stays: then the file is NAME-2, or the next that is free. Returns its path."""
    temporary = _written(path, data)
    try:
        name = _reserved(path)
    except BaseException:
        os.unlink(temporary)
        raise
    try:
        _put_in_place(temporary, name)
    except BaseException:
        name.unlink(missing_ok=True)
        raise
    return name


def _reserved(path: Path) -> Path:
    """An empty file under the first free name. Not a hard link, which not every file system has."""
    names = numbered(path)
    while True:
        name = next(names)
        try:
            os.close(os.open(name, _FLAGS, 0o600))
        except FileExistsError:
            continue
        return name


def numbered(path: Path) -> Iterator[Path]:
    """`run.pps`, `run-2.pps`, `run-3.pps` …"""
    yield path
    yield from (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(2))


def _written(path: Path, data: bytes) -> str:
    """A new file with the data beside `path`, which is on the disk."""
    fd, temporary = _create(path)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        os.unlink(temporary)
        raise
    return temporary


def _create(path: Path) -> tuple[int, str]:
    while True:
        # Not the whole name: it may be as long as a name can be.
        temporary = str(path.with_name(f".{path.name[:40]}.{secrets.token_hex(6)}"))
        try:
            return os.open(temporary, _FLAGS, 0o600), temporary
        except FileExistsError:
            continue


def _put_in_place(temporary: str, path: Path) -> None:
    why = why_not_writable(path)
    try:
        if why is not None:
            raise OSError(errno.EINVAL, why)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
