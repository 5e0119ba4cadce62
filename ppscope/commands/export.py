"""`export`: a snapshot or recording for another tool."""

from __future__ import annotations

import sys
from pathlib import Path

from ppscope import exits, stdout
from ppscope.commands.reading import read
from ppscope.complain import complain
from ppscope.records import AnyRecord
from ppscope.snapshot.export_gpus import gpu_csv, gpu_json
from ppscope.snapshot.export_stacks import folded, speedscope
from ppscope.snapshot.export_trace import chrome_trace
from ppscope.snapshot.files import named, why_not_over, write_private
from ppscope.snapshot.recorded import session_of
from ppscope.snapshot.save import render
from ppscope.snapshot.stretch import Asked
from ppscope.snapshot.window import RecordWindow
from ppscope.unicode import json_bytes


def export(file: Path, kind: str, output: Path | None, asked: Asked, *, redact_paths: bool) -> int:
    """Write `file` in the form `kind`, to stdout without `output`; returns the exit code."""
    why = why_not_over(output, (file,)) if output is not None else None
    if why:
        complain(why)
        return exits.USAGE
    source = read(file, asked)
    if isinstance(source, int):
        return source
    data = exported(source.records(redact_paths=redact_paths), kind, file.name)
    if output is None and sys.stdout.isatty():
        stdout.write_text(data.decode("utf-8", "replace"))
        return exits.OK
    if output is None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return exits.OK
    try:
        write_private(output, data)
    except OSError as error:
        complain(f"{named(output)}: {error.strerror or error}")
        return exits.CANNOT_ATTACH
    return exits.OK


def exported(records: list[AnyRecord], kind: str, name: str) -> bytes:
    """The file's content; `kind` is html, perfetto, speedscope, folded, gpu-csv or gpu-json."""
    if kind == "html":
        return render(records)
    if kind == "perfetto":
        window = RecordWindow()
        window.add(records)
        events = list(chrome_trace(window, session_of(records)))
        return json_bytes({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"from": "ppscope"}})
    if kind == "speedscope":
        return json_bytes(speedscope(records, name))
    if kind == "folded":
        return "".join(line + "\n" for line in folded(records)).encode("utf-8", "replace")
    return gpu_csv(records).encode() if kind == "gpu-csv" else gpu_json(records)
