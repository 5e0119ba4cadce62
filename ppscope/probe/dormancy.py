"""Whether anybody watches: a view sets the time of this process's wanted file again and again, and the loop looks at it now and then."""

from __future__ import annotations

import os

from . import layout
from .ring import RingError, hold, name_of, pid_namespace, started_ticks

_LOOK_NS = 100_000_000
_REST_NS = 5_000_000_000


class Dormancy:
    """The wanted file: made here, locked and long past; its modification time is a reading of CLOCK_MONOTONIC, so no clock step matters.

    `folder` is a descriptor of the private folder, needed only while this is made.
    """

    def __init__(self, folder: int) -> None:
        ticks = started_ticks()
        if ticks is None:
            raise RingError("/proc/self/stat cannot be read")
        name = name_of(layout.WANTED, pid_namespace(), os.getpid(), ticks)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(name, flags, 0o600, dir_fd=folder)
        hold(self._fd, 0)
        os.utime(self._fd, ns=(0, 0))
        self._next_ns = 0

    def wanted(self, now_ns: int) -> bool | None:
        """Whether spans are wanted; None between two looks, which are 0.1 s apart."""
        if now_ns < self._next_ns:
            return None
        self._next_ns = now_ns + _LOOK_NS
        # A view may write between the two readings; a time far ahead is no view's (a touch, by the wall clock).
        return abs(now_ns - os.fstat(self._fd).st_mtime_ns) < layout.WANTED_NS

    def rest(self, now_ns: int) -> None:
        """Do not look for some seconds: what was wanted could not be done."""
        self._next_ns = now_ns + _REST_NS

    def close(self) -> None:
        """Let go of the file, in a forked child: it is the parent's."""
        os.close(self._fd)
