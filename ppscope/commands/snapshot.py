"""`snapshot`: look for some seconds, then one HTML file."""

from __future__ import annotations

from pathlib import Path

from ppscope import exits, stdout
from ppscope.collect.client import CollectorProcess, collector_arguments
from ppscope.commands.check import DUMP_CORES, look, most_s
from ppscope.commands.live import wait_for_server
from ppscope.commands.progress import Progress
from ppscope.complain import complain
from ppscope.session import Session
from ppscope.snapshot.files import named, why_not_writable, write_new, write_private
from ppscope.snapshot.save import file_name, render
from ppscope.snapshot.window import KeptStream
from ppscope.target.errors import for_command


class _Watched(CollectorProcess):
    """A collector that is waited for where the user can see it."""

    def __init__(self, arguments: list[str], progress: Progress) -> None:
        super().__init__(arguments)
        self._progress = progress

    def wait(self, timeout_s: float) -> bool:
        self._progress.tell()
        return super().wait(timeout_s)


def snapshot(pid: int | None, output: Path | None, *, seconds: float, rate_hz: float, redact_paths: bool) -> int:
    """Write a snapshot of the server of a pid; returns the exit code."""
    why = why_not_writable(output or Path("ppscope.html"))
    if why:
        complain(why)
        return exits.USAGE
    progress = Progress(seconds, most_s(seconds))
    stream = _Watched(collector_arguments(pid, rate_hz), progress)
    kept = KeptStream(stream, None)
    session = Session(kept, dump_cores=DUMP_CORES)
    try:
        end = wait_for_server(session, stream) or look(session, stream, seconds)
    finally:
        session.close()
        progress.clear()
    if end is not None:
        complain(end.message or end.reason, for_command(end.remedy, "snapshot"))
        return end.exit_code or exits.CANNOT_ATTACH
    records = kept.window.records()
    path = output or Path(file_name(records))
    try:
        progress.say("writing the page")
        data = render(records, redact_paths=redact_paths)
        progress.clear()
        if output is None:
            path = write_new(path, data).absolute()
        else:
            write_private(path, data)
    except OSError as error:
        complain(f"{named(path)}: {error.strerror or error}")
        return exits.CANNOT_ATTACH
    finally:
        progress.clear()
    stdout.write_path(path)
    return exits.OK
