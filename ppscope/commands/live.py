"""`attach`: a collector, a session, the screen."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING

from ppscope import exits, garbage, signals
from ppscope.collect.client import CollectorProcess, RecordStream, collector_arguments
from ppscope.complain import complain
from ppscope.records import End

if TYPE_CHECKING:
    from ppscope.app import PpscopeApp
    from ppscope.session import Session
    from ppscope.snapshot.window import KeptStream

_LAST_S = 8.0
"""For an orderly end: a SIGHUP that is heeded needs a second or two."""
_FIRST_WORD_S = 6.0
_FIRST_SERVER_S = 30.0
"""Of a collector that has begun: on a cold network disk, or among many thousand processes, it takes its time to find the server."""


def wait_for_server(session: Session, stream: RecordStream) -> End | None:
    """Wait until the server is known; an End record instead says why it will not be."""
    started = time.monotonic()
    told = False
    while session.server is None and session.end is None:
        stream.wait(0.2)
        session.poll()
        waited_s = time.monotonic() - started
        limit_s = _FIRST_WORD_S if session.hello is None else _FIRST_SERVER_S
        if session.server is None and session.end is None and waited_s >= limit_s:
            said = f"no answer from the collector in {limit_s:.0f} s"
            return End(0, "attach_failed", said, exit_code=exits.CANNOT_ATTACH)
        if not told and session.server is None and waited_s >= _FIRST_WORD_S:
            told = True
            complain("still looking for the server")
    return session.end


def not_a_terminal() -> str | None:
    """Why there can be no screen here, None when there can."""
    for name, stream in (("stdin", sys.stdin), ("stdout", sys.stdout)):
        if not stream.isatty():
            return f"{name} is not a terminal, so there is no screen to draw"
    kind = os.environ.get("TERM", "")
    if kind in ("", "dumb", "unknown"):
        return f"TERM is {kind or 'not set'}: a terminal that cannot move its cursor, so there is no screen to draw"
    return None


def attach(pid: int | None, *, rate_hz: float | None, ascii_only: bool, gives_way: bool = True) -> int:
    """Attach to the server of a pid and run the screen; returns the exit code."""
    reason = not_a_terminal()
    if reason:
        complain(reason, "ppscope check PID --json")
        return exits.USAGE
    garbage.hold()
    stream = CollectorProcess(collector_arguments(pid, rate_hz, gives_way=gives_way))
    # Imported while the collector looks for the server: that and these each take a tenth of a second.
    from ppscope.session import Session
    from ppscope.snapshot.window import KEEP_NS, KeptStream

    kept = KeptStream(stream, KEEP_NS)
    session = Session(kept)
    try:
        return _show(pid, session, kept, ascii_only)
    finally:
        garbage.release()
        session.close()


def say_why_not(pid: int | None, end: End) -> None:
    """The line of a failed attach, and below it what stands in the way where it was a matter of permission."""
    reasons = []
    if end.message.startswith("no permission"):
        from ppscope.doctor.gather import refused

        reasons = refused(pid)
    complain(end.message or end.reason, "" if reasons else end.remedy)
    for check in reasons:
        complain(check.what, check.remedy)


def run_screen(app: PpscopeApp) -> int:
    """Run the screen until the user or a signal ends it: the terminal is as it was before, either way; returns the exit code."""
    ended_by: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        ended_by.append(number)
        app.exit(return_code=signals.exit_code(ended_by[0]))

    signals.listen(end)
    over = threading.Event()
    threading.Thread(target=_end_with_the_terminal, args=(over,), name="terminal-watch", daemon=True).start()
    try:
        app.run()
    finally:
        over.set()
    problem = app.save_snapshot.finish(complain) if app.save_snapshot is not None else None
    if problem is not None:
        complain(f"no snapshot: {problem}")
    if ended_by:
        signals.say(ended_by[0])
        return signals.exit_code(ended_by[0])
    return app.return_code or exits.OK


def _end_with_the_terminal(over: threading.Event) -> None:
    """End this process some seconds after its terminal is gone, where the SIGHUP that tells of it was ignored or not enough.

    Without a terminal keys are read in a busy loop, and what is written waits for ever. The collector ends with its stdin. Once the
    screen is over there is nothing of it to end: a snapshot that is still being written takes as long as it takes.
    """
    watch = select.poll()
    watch.register(0, 0)  # a hang-up is always told of
    watch.poll()
    if not over.wait(_LAST_S):
        os._exit(signals.exit_code(signal.SIGHUP))


def _show(pid: int | None, session: Session, stream: KeptStream, ascii_only: bool) -> int:
    from ppscope.app import PpscopeApp
    from ppscope.snapshot.save import Saver

    end = wait_for_server(session, stream)
    if end is not None:
        say_why_not(pid, end)
        return end.exit_code or exits.CANNOT_ATTACH
    app = PpscopeApp(session, ascii=ascii_only, save_snapshot=Saver(stream.window))
    garbage.settle()
    code = run_screen(app)
    if session.bursts.left_behind is not None:
        where = session.bursts.left_behind
        complain(f"a profile was still under way: the server was told to stop it, and its traces stay in {where}")
    if app.state.kept:
        complain(f"the traces of the profile burst are in {app.state.kept}")
    if code:
        return code
    if session.end is not None and session.end.exit_code:
        complain(session.end.message, session.end.remedy)
        return session.end.exit_code
    return exits.OK


def prefers_ascii() -> bool:
    """True where the locale cannot show more than ASCII."""
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    return encoding not in ("utf8", "utf8sig") or os.environ.get("LC_ALL") in ("C", "POSIX")
