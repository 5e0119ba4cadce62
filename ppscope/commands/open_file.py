"""`open`: a snapshot or recording in the same screen, or its data as JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from ppscope import exits
from ppscope.commands.live import complain, not_a_terminal
from ppscope.snapshot.document import build, session_of
from ppscope.snapshot.paths import shorten_paths
from ppscope.snapshot.read import Opened, UnreadableFile, read_file
from ppscope.snapshot.save import Saver
from ppscope.snapshot.window import RecordWindow


def read_or_complain(path: Path) -> Opened | None:
    """A file's content, None after a line that says why there is none; what is missing of a cut file is told too."""
    try:
        opened = read_file(path)
    except UnreadableFile as error:
        complain(str(error))
        return None
    if opened.damage:
        complain(f"{path} is {opened.damage}")
    return opened


def document_of(opened: Opened, *, redact_paths: bool = False) -> dict[str, Any]:
    """The embedded data, or what a snapshot of this recording would embed."""
    if redact_paths:
        return build(shorten_paths(opened.records))
    return opened.document if opened.document is not None else build(opened.records)


def open_file(path: Path, *, as_json: bool, ascii_only: bool, redact_paths: bool = False) -> int:
    """Show a file, or print its data; returns the exit code."""
    opened = read_or_complain(path)
    if opened is None:
        return exits.CANNOT_ATTACH
    reason = None if as_json else not_a_terminal()
    if reason:
        complain(reason, f"ppscope open {path} --json")
        return exits.USAGE
    if as_json:
        document = document_of(opened, redact_paths=redact_paths)
        first = {"schema": document["schema"], **document}
        sys.stdout.write(msgspec.json.encode(first).decode() + "\n")
        return exits.OK
    from ppscope.app import PpscopeApp

    window = RecordWindow()
    window.add(opened.records)
    app = PpscopeApp(session_of(opened.records), ascii=ascii_only, save_snapshot=Saver(window))
    app.run()
    return app.return_code or exits.OK
