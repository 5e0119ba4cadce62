"""`record`: the collector's stream to disk."""

from __future__ import annotations

import time
from pathlib import Path
from types import FrameType

from ppscope import exits, signals, stdout
from ppscope.collect.client import CollectorProcess, collector_arguments
from ppscope.complain import complain
from ppscope.records import AnyRecord, End, Server, ServerGone
from ppscope.session.dumping import Dumping
from ppscope.snapshot.files import named, why_not_writable
from ppscope.snapshot.paths import shorten_paths
from ppscope.snapshot.recorder import Recorder, named_parts
from ppscope.target.errors import for_command

_POLL_S = 0.25
_FIRST_SERVER_S = 20.0
ENOUGH_S = 1.0
"""A target that ends sooner than this has not been seen."""


class Interrupt:
    """Turns ctrl-c, SIGTERM and a closed terminal into a flag, so that what was collected is written before the end."""

    def __init__(self) -> None:
        self.number: int | None = None
        signals.listen(self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.number = self.number or number


def record(
    pid: int | None,
    output: Path,
    *,
    seconds: float | None,
    max_bytes: int,
    rotate_s: float,
    rate_hz: float | None,
    redact_paths: bool = False,
) -> int:
    """Record the server of a pid until `seconds` are over, it ends, or the user interrupts; returns the exit code."""
    why = why_not_writable(output)
    if why:
        complain(why)
        return exits.USAGE
    try:
        recorder = Recorder(output, max_bytes, rotate_s, tell=complain)
    except OSError as error:
        complain(f"{named(output)}: {error.strerror or error}")
        return exits.USAGE
    interrupt = Interrupt()
    stream = CollectorProcess(collector_arguments(pid, rate_hz, gives_way=True))
    recording = _Recording(stream, recorder, seconds, interrupt, redact_paths)
    try:
        code = recording.run()
    except OSError as error:
        complain(f"{named(output)}: {error.strerror or error}")
        return exits.CANNOT_ATTACH
    finally:
        stream.close()
        try:
            recorder.close()
        except OSError as error:
            complain(f"{named(output)}: {error.strerror or error}")
    if recording.written is not None:
        stdout.write_path(recording.written)  # a reader that is gone is no fault of the recording's
    return code


class _Recording:
    def __init__(
        self,
        stream: CollectorProcess,
        recorder: Recorder,
        seconds: float | None,
        interrupt: Interrupt,
        redact_paths: bool,
    ) -> None:
        self._stream = stream
        self._recorder = recorder
        self._seconds = seconds
        self._interrupt = interrupt
        self._redact_paths = redact_paths
        self._dumping = Dumping()
        self._server: Server | None = None
        self._began_s: float | None = None
        self._end: End | None = None
        self._gone = False
        self.written: Path | None = None
        """The finished file; None where there is none, or it was moved meanwhile."""

    def run(self) -> int:
        started_s = time.monotonic()
        while self._interrupt.number is None and self._end is None and not self._gone and not self._is_over():
            self._stream.wait(_POLL_S)
            self._take(self._stream.drain())
            self._ask_for_dumps()
            if self._began_s is None and time.monotonic() - started_s > _FIRST_SERVER_S:
                complain(f"no answer from the collector in {_FIRST_SERVER_S:.0f} s")
                return exits.CANNOT_ATTACH
        return self._finish()

    def _is_over(self) -> bool:
        return self._seconds is not None and self.recorded_s >= self._seconds

    @property
    def recorded_s(self) -> float:
        return 0.0 if self._began_s is None else time.monotonic() - self._began_s

    def _take(self, records: list[AnyRecord]) -> None:
        for item in records:
            if isinstance(item, Server):
                self._server = item
            if isinstance(item, Server) and self._began_s is None:
                self._began_s = time.monotonic()
                complain(f"recording {item.model or item.kind}, pid {item.launcher_pid}; ctrl-c ends it")
            elif isinstance(item, ServerGone):
                self._gone = True
            elif isinstance(item, End):
                self._end = item
        kept = [item for item in records if not isinstance(item, End)]
        self._recorder.write(shorten_paths(kept) if self._redact_paths else kept)

    def _ask_for_dumps(self) -> None:
        """As the view does, so that the recording can say how many micro-batch slots were in use."""
        if self._server is not None:
            for command in self._dumping.wanted(self._server, 0, None, time.monotonic_ns()):
                self._stream.send(command)

    def _finish(self) -> int:
        recorded_s = self.recorded_s
        self._stream.close()
        self._take(self._stream.drain())
        end = self._end
        if not self._recorder.begun:
            if end is not None and end.exit_code:
                complain(end.message or end.reason, for_command(end.remedy, "record"))
                return end.exit_code
            if self._interrupt.number is None:
                return exits.CANNOT_ATTACH
            signals.say(self._interrupt.number)
            return signals.exit_code(self._interrupt.number)
        reason, code = "seconds", exits.OK
        if self._gone:
            reason, code = "target_gone", exits.TARGET_ENDED
            complain(
                f"the server ended after {recorded_s:.1f} s of recording; {named(self._recorder.path)} has what was seen"
            )
        elif self._interrupt.number is not None:
            reason, code = "quit", signals.exit_code(self._interrupt.number)
        elif end is not None and end.exit_code:
            complain(end.message or end.reason, for_command(end.remedy, "record"))
            reason, code = "error", end.exit_code
        in_place = self._recorder.is_in_place
        self._recorder.close(End(time.monotonic_ns(), reason))
        if not in_place:
            complain(f"{named(self._recorder.path)} was moved, removed or replaced while it was written")
        files = [*self._recorder.earlier_parts, *([self._recorder.path] if in_place else [])]
        if len(files) > 1:
            complain(f"the recording is in {len(files)} files, which belong together: {named_parts(files)}")
        self.written = self._recorder.path if in_place else None
        return code
