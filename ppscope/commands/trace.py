"""`trace`: torch profiler traces as text, as JSON, as the screen of a live server, or as a page."""

from __future__ import annotations

from pathlib import Path

from ppscope import exits, stdout
from ppscope.commands.live import not_a_terminal, run_screen
from ppscope.complain import complain
from ppscope.trace.command import read, show
from ppscope.trace.recording import trace_records
from ppscope.trace.report import TraceReport


def trace(paths: tuple[str, ...], *, as_json: bool, as_text: bool, output: Path | None, ascii_only: bool) -> int:
    """Analyse files and folders and show the result; returns the exit code."""
    report, code = read(list(paths))
    if report is None:
        return code
    if output is not None:
        return _write(report, output) or code
    if as_json or as_text or not_a_terminal():
        show(report, as_json)
        return code
    return _screen(report, ascii_only) or code


def _write(report: TraceReport, output: Path) -> int:
    from ppscope.snapshot.files import named, why_not_writable, write_private
    from ppscope.snapshot.save import render

    why = why_not_writable(output)
    if why:
        complain(why)
        return exits.USAGE
    records = trace_records(report)
    if not records:
        complain("no file holds an event, so there is nothing to draw", "ppscope trace FILE --text")
        return exits.CANNOT_ATTACH
    try:
        write_private(output, render(records))
    except OSError as error:
        complain(f"{named(output)}: {error.strerror or error}")
        return exits.CANNOT_ATTACH
    stdout.write_path(output)
    return exits.OK


def _screen(report: TraceReport, ascii_only: bool) -> int:
    from ppscope.app import PpscopeApp
    from ppscope.collect.client import RecordedStream
    from ppscope.session import Session

    records = trace_records(report)
    if not records:
        show(report, as_json=False)
        return exits.OK
    session = Session(RecordedStream(records))
    session.poll()
    app = PpscopeApp(session, ascii=ascii_only)
    return run_screen(app)
