"""Reading one /proc tree with plain os calls: what is gone, hidden or not ours to read is None, never an exception."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from typing import NamedTuple

CAP_SYS_PTRACE = 19
"""Bit of a capability set, include/uapi/linux/capability.h."""
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel, include/linux/proc_ns.h."""


class Stat(NamedTuple):
    """Fields of /proc/PID/stat; `started_ticks` is the start time since boot in clock ticks."""

    comm: str
    state: str
    ppid: int
    threads: int
    started_ticks: int


class Status(NamedTuple):
    """Fields of /proc/PID/status. `ns_pids` are the pids from our namespace inwards; the last is the process's own view."""

    tgid: int | None
    uid: int | None
    ns_pids: tuple[int, ...]


class Proc:
    """One /proc tree; `root` is `/proc` or a test's copy."""

    def __init__(self, root: str = "/proc") -> None:
        self.root = root

    def path(self, pid: int | str, name: str) -> str:
        """Path of a file of that process."""
        return f"{self.root}/{pid}/{name}"

    def pids(self) -> list[int]:
        """Every process that can be seen."""
        try:
            return [int(name) for name in os.listdir(self.root) if name.isdigit()]
        except OSError:
            return []

    def exists(self, pid: int) -> bool:
        """Whether a process or thread of that number can be seen."""
        return os.path.isdir(f"{self.root}/{pid}")

    def read(self, pid: int | str, name: str) -> bytes | None:
        """The whole file, None when it cannot be read."""
        try:
            fd = os.open(self.path(pid, name), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            parts = []
            while chunk := os.read(fd, 1 << 16):  # a short read is not the end: net/tcp gives whole rows below a page
                parts.append(chunk)
            return b"".join(parts)
        except OSError:
            return None
        finally:
            os.close(fd)

    def argv(self, pid: int) -> tuple[str, ...] | None:
        """Command line; empty for kernel threads and zombies."""
        raw = self.read(pid, "cmdline")
        return None if raw is None else split_nul(raw)

    def stat(self, pid: int) -> Stat | None:
        """Parent, start time and state."""
        raw = self.read(pid, "stat")
        return None if raw is None else parse_stat(raw)

    def status(self, pid: int) -> Status | None:
        """Owner and the pids in nested namespaces."""
        raw = self.read(pid, "status")
        return None if raw is None else parse_status(raw)

    def environ(self, pid: int) -> dict[str, str] | None:
        """Environment as it was at exec; None without permission."""
        raw = self.read(pid, "environ")
        if raw is None:
            return None
        return dict(item.split("=", 1) for item in split_nul(raw) if "=" in item)

    def link(self, pid: int | str, name: str) -> str | None:
        """Target of a symbolic link such as `exe`, `cwd` or `ns/net`; a path is as the process itself names it."""
        try:
            target = os.readlink(self.path(pid, name))
        except OSError:
            return None
        return self._inside(pid, [target])[0] if name in ("cwd", "exe") else target

    def _inside(self, pid: int | str, paths: Sequence[str]) -> list[str]:
        """Paths without the folder that is the process's root: after a plain chroot the kernel names them from ours."""
        root = self.link(pid, "root")
        if root is None or root == "/":
            return list(paths)
        return [path[len(root) :] or "/" if f"{path}/".startswith(f"{root}/") else path for path in paths]

    def fd_links(self, pid: int) -> list[str] | None:
        """What the process's file descriptors point to; None without permission."""
        folder = self.path(pid, "fd")
        try:
            names = os.listdir(folder)
        except OSError:
            return None
        links, refused = [], 0
        for name in names:
            try:
                links.append(os.readlink(f"{folder}/{name}"))
            except PermissionError:
                refused += 1  # root without CAP_SYS_PTRACE may list descriptors and not see what they are
            except OSError:
                continue
        return None if refused and not links else links

    def mapped_files(self, pid: int) -> frozenset[str] | None:
        """Paths of the files mapped into the process, as it names them; None without permission."""
        raw = self.read(pid, "maps")
        if raw is None:
            return None
        names = {line[slash:] for line in raw.split(b"\n") if (slash := line.find(b"/")) > 0}
        return frozenset(self._inside(pid, [name.decode("utf-8", "replace") for name in names]))


def split_nul(raw: bytes) -> tuple[str, ...]:
    """The strings of a NUL-separated block, without the padding behind the last."""
    text = raw.rstrip(b"\0").decode("utf-8", "replace")
    return tuple(text.split("\0")) if text else ()


def parse_stat(raw: bytes) -> Stat | None:
    """Read a stat line; the name may hold blanks and brackets. None when it is not one."""
    left, right = raw.find(b"("), raw.rfind(b")")
    fields = raw[right + 2 :].split()
    if left < 0 or right < left or len(fields) < 20:
        return None
    try:
        return Stat(
            comm=raw[left + 1 : right].decode("utf-8", "replace"),
            state=fields[0].decode("ascii", "replace"),
            ppid=int(fields[1]),
            threads=int(fields[17]),
            started_ticks=int(fields[19]),
        )
    except ValueError:
        return None


def parse_status(raw: bytes) -> Status:
    """Read a status file; absent or odd lines leave their field unknown."""
    tgid: int | None = None
    uid: int | None = None
    ns_pids: tuple[int, ...] = ()
    for line in raw.split(b"\n"):
        name, _, rest = line.partition(b":")
        if name not in (b"Tgid", b"Uid", b"NSpid"):
            continue
        try:
            numbers = tuple(int(word) for word in rest.split())
        except ValueError:
            continue
        if not numbers:
            continue
        if name == b"Tgid":
            tgid = numbers[0]
        elif name == b"Uid":
            uid = numbers[0]
        else:
            ns_pids = numbers
    return Status(tgid, uid, ns_pids)


def user_name(uid: int | None) -> str | None:
    """Login name of a user id, or the number where no name is known here (a container's user)."""
    if uid is None:
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def status_number(status: bytes, name: str, base: int = 10) -> int | None:
    """A number of a /proc/PID/status file; None where the line is absent or odd."""
    head = name.encode() + b":"
    for line in status.split(b"\n"):
        if line.startswith(head):
            words = line[len(head) :].split()
            try:
                return int(words[0], base) if words else None
            except ValueError:
                return None
    return None


def may_trace_others(proc: Proc) -> bool | None:
    """Whether CAP_SYS_PTRACE is in force for this very process; None where that cannot be read."""
    held = status_number(proc.read("self", "status") or b"", "CapEff", 16)
    return None if held is None else bool(held >> CAP_SYS_PTRACE & 1)


def contained(proc: Proc) -> bool | None:
    """Whether we run in a PID namespace other than the machine's first; None where that cannot be read."""
    namespace = proc.link("self", "ns/pid")
    return None if namespace is None else namespace != _FIRST_PID_NAMESPACE


def hides_processes(proc: Proc) -> bool:
    """Whether /proc is mounted with `hidepid` and hides from us: the right to trace and the mount's `gid=` see everything.

    That is the kernel's own rule (fs/proc/base.c, has_pid_permissions).
    """
    raw = proc.read("self", "mountinfo") or b""
    mounts = [fields for line in raw.split(b"\n") if len(fields := line.split()) > 4 and fields[4] == b"/proc"]
    options = dict(word.partition(b"=")[::2] for word in mounts[-1][-1].split(b",")) if mounts else {}
    if options.get(b"hidepid", b"0") in (b"0", b"off") or may_trace_others(proc):
        return False
    seeing = options.get(b"gid", b"")
    return not (seeing.isdigit() and int(seeing) in (os.getegid(), *os.getgroups()))
