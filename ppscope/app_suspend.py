"""ctrl-z: who has to stop with us so that the shell takes the terminal back, and drawing everything anew afterwards."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from ppscope.app_canvas import Canvas


def job_above() -> list[int] | None:
    """Pids of our ancestors in our own process group, nearest first; None where no shell could bring us back.

    A shell takes the terminal back when what it started itself has stopped: `make`, a script or `sudo` above us, not only we. Others
    of the group are left alone: from a script without job control the server that is watched may be one of them.
    """
    group, session = os.getpgrp(), os.getsid(0)
    found: list[int] = []
    try:
        if os.tcgetpgrp(sys.__stdin__.fileno() if sys.__stdin__ else 0) != group:
            return None
        for parent in psutil.Process().parents():
            if os.getpgid(parent.pid) != group:
                return found if os.getsid(parent.pid) == session else None
            found.append(parent.pid)
    except (OSError, ValueError, psutil.Error):
        return None
    return None


def suspend(app: Canvas) -> None:
    """Give the terminal back and stop, with everything between us and the shell; returns when the shell says `fg`."""
    above = job_above()
    if above is None:
        app.say("not suspended: no shell is here that could bring the view back", "warn")
        return
    with app.suspend():
        for pid in above:
            with suppress(OSError):  # sudo is another user's, and stops by itself when we do
                os.kill(pid, signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGSTOP)


def redraw(app: Canvas) -> None:
    """Send every row again: the terminal has forgotten what was on it."""
    for screen in app.screen_stack:
        screen.refresh(layout=True)
        for widget in screen.walk_children():
            widget.refresh()
