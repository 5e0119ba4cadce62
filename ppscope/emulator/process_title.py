"""Process title, name and death signal through libc, with the visible results of `setproctitle` (a padded command line)."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def die_with_parent(expected_parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent's spawning thread ends; exit at once if the parent is gone already."""
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != expected_parent:
        os._exit(1)


def allow_tracers() -> None:
    """Let any process of the same user read this one under yama ptrace_scope=1; without yama the call fails and nothing is lost."""
    _libc().prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)


def set_title(title: str) -> None:
    """Overwrite the command line with `title` padded with spaces, wipe the environment area, and set the thread name.

    The name keeps 15 bytes, as every Linux thread name. Only Linux: addresses come from /proc/self/stat (fields 48 to 51 of proc(5)).
    """
    _libc().prctl(_PR_SET_NAME, title.encode()[:15] + b"\0", 0, 0, 0)
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    arg_start, arg_end, env_start, env_end = (int(field) for field in fields[45:49])
    # setenv copies each variable to the heap, so that the area the kernel set up is free to be overwritten.
    for name, value in os.environ.items():
        os.putenv(name, value)
    room = arg_end - arg_start
    ctypes.memmove(arg_start, title.encode()[: room - 1].ljust(room - 1) + b"\0", room)
    ctypes.memset(env_start, 0, env_end - env_start)
