"""Whether a process may enter a folder, by the permission bits of every folder on the way; nothing is opened."""

from __future__ import annotations

import os
import stat
from pathlib import PurePosixPath
from typing import NamedTuple

from ppscope.target.procfs import Proc, status_number

_PASSES = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: no folder stops who has one of them."""
_ACL = "system.posix_acl_access"


class Who(NamedTuple):
    """As whom a process opens files. `passes`: permission bits do not stop it."""

    uid: int
    groups: frozenset[int]
    passes: bool


def who(proc: Proc, pid: int) -> Who | None:
    """The user, groups and rights of a process; None where they cannot be read."""
    raw = proc.read(pid, "status") or b""
    fields = dict(line.split(b":", 1) for line in raw.split(b"\n") if b":" in line)
    held = status_number(raw, "CapEff", 16)
    if held is None:
        return None
    try:
        uid, gid = (int(fields[name].split()[3]) for name in (b"Uid", b"Gid"))
        groups = frozenset(int(word) for word in fields[b"Groups"].split())
        return Who(uid, groups | {gid}, bool(held & _PASSES))
    except (KeyError, ValueError, IndexError):
        return None


def barred(path: str, root: str, visitor: Who) -> str | None:
    """The first folder on the way to `path`, or that itself, which the visitor may not enter; None: none is known.

    `root` is where the visitor's file tree begins, empty for our own. What an access list or a link of another tree says is not known.
    """
    if visitor.passes:
        return None
    for way in dict.fromkeys((path, path if root else os.path.realpath(path))):
        for folder in (*reversed(PurePosixPath(way).parents), PurePosixPath(way)):
            at = root + str(folder)
            try:
                found = os.lstat(at) if root else os.stat(at)
                if not stat.S_ISDIR(found.st_mode):
                    break
                if not _may_enter(found, visitor) and _ACL not in os.listxattr(at):
                    return str(folder)
            except OSError:
                break
    return None


def _may_enter(folder: os.stat_result, visitor: Who) -> bool:
    if folder.st_uid == visitor.uid:
        return bool(folder.st_mode & stat.S_IXUSR)
    if folder.st_gid in visitor.groups:
        return bool(folder.st_mode & stat.S_IXGRP)
    return bool(folder.st_mode & stat.S_IXOTH)
