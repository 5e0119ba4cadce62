"""`demo`: an emulated server, then the same attach."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

from ppscope import emulator, exits
from ppscope.commands.live import attach, not_a_terminal, prefers_ascii
from ppscope.complain import complain

_LOOK_S = 0.5


def demo(scenario: str, *, pp: int, tp: int, serve_only: bool, rate_hz: float, ascii_only: bool) -> int:
    """Start the emulated server, attach to it, and end it with the view; returns the exit code."""
    reason = None if serve_only else not_a_terminal()
    if reason:
        complain(reason, "ppscope demo --serve-only")
        return exits.USAGE
    try:
        server = emulator.start(scenario, pp, tp=tp)
    except emulator.EmulatorError as error:
        complain(str(error))
        return exits.CANNOT_ATTACH
    with server:
        if serve_only:
            return _serve(server)
        ascii_only = ascii_only or prefers_ascii()
        # Nothing real runs there that the samplers could slow down.
        return attach(server.pid, rate_hz=rate_hz, ascii_only=ascii_only, gives_way=False)


def _serve(server: emulator.EmulatedServer) -> int:
    """Print the pid and keep the server up until somebody ends us, or it."""
    ended = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    sys.stdout.write(f"{server.pid}\n")
    sys.stdout.flush()
    while not ended.wait(_LOOK_S):
        if server.process.poll() is not None:
            complain("the emulated server ended")
            return exits.TARGET_ENDED
    return exits.OK
