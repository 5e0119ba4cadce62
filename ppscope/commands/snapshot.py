"""`snapshot`: look for some seconds, then one HTML file."""

from __future__ import annotations

import sys
from pathlib import Path

from ppscope import exits
from ppscope.collect.client import CollectorProcess
from ppscope.commands.check import look
from ppscope.commands.live import complain, wait_for_server
from ppscope.session import Session
from ppscope.snapshot.files import why_not_writable, write_private
from ppscope.snapshot.save import file_name, render
from ppscope.snapshot.window import KeptStream
from ppscope.target.errors import for_command


def snapshot(pid: int | None, output: Path | None, *, seconds: float, rate_hz: float, redact_paths: bool) -> int:
    """Write a snapshot of the server of a pid; returns the exit code."""
    why = why_not_writable(output) if output is not None else None
    if why:
        complain(why)
        return exits.USAGE
    arguments = ["--rate", str(rate_hz), *(["--pid", str(pid)] if pid is not None else [])]
    stream = CollectorProcess(arguments)
    kept = KeptStream(stream, None)
    session = Session(kept)
    try:
        end = wait_for_server(session, stream) or look(session, stream, seconds)
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    finally:
        session.close()
    if end is not None:
        complain(end.message or end.reason, for_command(end.remedy, "snapshot"))
        return end.exit_code or exits.CANNOT_ATTACH
    records = kept.window.records()
    path = output or Path.cwd() / file_name(records)
    try:
        write_private(path, render(records, redact_paths=redact_paths))
    except OSError as error:
        complain(f"{path}: {error.strerror or error}")
        return exits.CANNOT_ATTACH
    sys.stdout.write(f"{path}\n")
    return exits.OK
