"""`open`: a snapshot or recording in the same screen, or its data as JSON."""

from __future__ import annotations

from pathlib import Path

from ppscope import exits, garbage, stdout
from ppscope.commands.live import not_a_terminal, run_screen
from ppscope.commands.reading import read
from ppscope.complain import complain
from ppscope.snapshot.paths import shorten_paths
from ppscope.snapshot.save import Saver
from ppscope.snapshot.scrub import RecordingFeed
from ppscope.snapshot.stretch import Asked
from ppscope.unicode import json_bytes


def open_file(path: Path, asked: Asked, *, as_json: bool, ascii_only: bool, redact_paths: bool = False) -> int:
    """Show a file, or print its data; returns the exit code."""
    source = read(path, asked, bounded=as_json)
    if isinstance(source, int):
        return source
    reason = None if as_json else not_a_terminal()
    if reason:
        complain(reason, f"ppscope open {path} --json")
        return exits.USAGE
    if as_json:
        document = source.document(redact_paths=redact_paths)
        first = {"schema": document["schema"], **document}
        stdout.write_json(json_bytes(first))
        return exits.OK
    from ppscope.app import PpscopeApp

    if redact_paths:
        source.opened.index.change(shorten_paths)
    feed = RecordingFeed(source.opened.index, source.stretch)
    app = PpscopeApp(feed, ascii=ascii_only, save_snapshot=Saver(feed))
    garbage.settle()
    return run_screen(app)
