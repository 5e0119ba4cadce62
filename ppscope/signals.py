"""The signals that ask a command to end: it ends what it started, leaves nothing, and says by its exit code which one it was.

And the words for a child that a signal ended.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(KeyboardInterrupt):
    """SIGTERM or SIGHUP, raised as ctrl-c is: whatever cleans up after the one does so after the others."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def exit_code(number: int) -> int:
    """The code of a command that a signal ended, as shells have it: 130 is ctrl-c."""
    return 128 + number


def listen(handler: Callable[[int, FrameType | None], object], numbers: Sequence[int] = NUMBERS) -> None:
    """Have them handled; a SIGHUP that is ignored, as under nohup, stays so."""
    for number in numbers:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def say(number: int) -> None:
    """One line for who did not press ctrl-c; a terminal that is gone takes none."""
    if number != signal.SIGINT:
        try:
            sys.stderr.write(f"ppscope: ended by {signal.Signals(number).name}\n")
            sys.stderr.flush()
        except OSError:
            pass


@contextmanager
def raised() -> Iterator[None]:
    """Raise `Ended` for SIGTERM and SIGHUP, once: a second one does not interrupt the cleaning up. The handlers are put back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in NUMBERS}
    seen = False

    def end(number: int, _frame: FrameType | None) -> None:
        nonlocal seen
        if not seen:
            seen = True
            raise Ended(number)

    try:
        listen(end, (signal.SIGTERM, signal.SIGHUP))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def killer(exit_code: int | None) -> str | None:
    """The signal that ended a child, by its name; None for a child that ended by itself."""
    if exit_code is None or exit_code >= 0:
        return None
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:  # the real-time signals have none
        name = f"signal {-exit_code}"
    return f"{name}, as the out-of-memory killer does" if -exit_code == signal.SIGKILL else name
