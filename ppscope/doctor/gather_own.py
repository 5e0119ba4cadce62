"""Facts about this process, its node and its terminal."""

from __future__ import annotations

import ctypes
import errno
import locale
import os
import sys
from collections.abc import Mapping

from ppscope.doctor.facts import Own, Terminal
from ppscope.sources.stacks_pyspy import ptrace_scope
from ppscope.target.procfs import Proc, contained, hides_processes, status_number, user_name

_SHM_LEAST_BYTES = 16 << 20


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def own() -> Own:
    """What this process may do."""
    proc = Proc()
    status = proc.read("self", "status") or b""
    uid = os.geteuid()
    return Own(
        uid=uid,
        user=user_name(uid) or str(uid),
        capabilities=status_number(status, "CapEff", 16),
        seccomp=status_number(status, "Seccomp"),
        ptrace_scope=ptrace_scope(),
        reads_itself=_reads_itself(),
        contained=contained(proc),
        hidepid=hides_processes(proc),
        bounding=status_number(status, "CapBnd", 16),
    )


def _reads_itself() -> str | None:
    """Copy eight bytes of our own memory with process_vm_readv: the kernel always allows it, so a refusal is a filter's."""
    try:
        call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except (OSError, AttributeError):
        return None
    call.restype = ctypes.c_ssize_t
    here, there = ctypes.create_string_buffer(8), ctypes.create_string_buffer(b"12345678", 8)
    local = _Vector(ctypes.cast(here, ctypes.c_void_p), 8)
    remote = _Vector(ctypes.cast(there, ctypes.c_void_p), 8)
    got = call(
        os.getpid(), ctypes.byref(local), ctypes.c_ulong(1), ctypes.byref(remote), ctypes.c_ulong(1), ctypes.c_ulong(0)
    )
    return "ok" if got == 8 else errno.errorcode.get(ctypes.get_errno(), "unknown")


def shm(folder: str = "/dev/shm") -> str:
    """Why shared memory cannot be used; empty when it can."""
    return no_room(folder, _SHM_LEAST_BYTES)


def no_room(folder: str, least_bytes: int) -> str:
    """Why files cannot be made in a folder; empty when they can. Nothing is written."""
    if not os.path.isdir(folder):
        return "no such folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return "no permission to write"
    try:
        room = os.statvfs(folder)
    except OSError as error:
        return error.strerror or str(error)
    free = room.f_bavail * room.f_frsize
    return "" if free >= least_bytes else f"{free >> 20} MB are free, {least_bytes >> 20} are needed"


def _encoding(env: Mapping[str, str], drawn: bool) -> str:
    # Python writes UTF-8 in the C locale all the same; who sets it wants ASCII, and the view draws that.
    if env.get("LC_ALL") in ("C", "POSIX"):
        return "ASCII"
    return (sys.stdout.encoding if drawn else locale.getpreferredencoding(False)) or ""


def terminal(environment: Mapping[str, str] | None = None) -> Terminal:
    """The terminal behind stdout."""
    env = os.environ if environment is None else environment
    columns = lines = None
    try:
        if sys.stdout.isatty():
            columns, lines = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        pass
    return Terminal(
        encoding=_encoding(env, columns is not None),
        columns=columns,
        lines=lines,
        term=env.get("TERM", ""),
        colorterm=env.get("COLORTERM", ""),
        no_color=bool(env.get("NO_COLOR")),
        tmux=bool(env.get("TMUX")),
    )
