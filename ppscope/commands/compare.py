"""`compare`: two snapshots or recordings, figure by figure."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ppscope import exits
from ppscope.commands.check import show
from ppscope.commands.live import complain
from ppscope.commands.open_file import document_of, read_or_complain
from ppscope.snapshot.compare import SCHEMA, compare_documents, to_json, to_text
from ppscope.snapshot.files import why_not_writable, write_private
from ppscope.snapshot.page_data import KEPT
from ppscope.snapshot.write import page


def compare(before: Path, after: Path, *, as_json: bool, output: Path | None, redact_paths: bool) -> int:
    """Print what changed, or write it as a page; returns the exit code: 1 while a finding above `info` is left, 3
    when the two are not of one model under one load."""
    why = why_not_writable(output) if output is not None else None
    if why:
        complain(why)
        return exits.USAGE
    opened = [read_or_complain(path) for path in (before, after)]
    documents = [document_of(one, redact_paths=redact_paths) for one in opened if one is not None]
    if len(documents) < 2:
        return exits.CANNOT_ATTACH
    comparison = compare_documents(documents[0], documents[1], (before.name, after.name))
    if output is not None:
        drawn = [{name: value for name, value in document.items() if name not in KEPT} for document in documents]
        data = {"schema": SCHEMA, "comparison": to_json(comparison), "before": drawn[0], "after": drawn[1]}
        try:
            write_private(output, page(data))
        except OSError as error:
            complain(f"{output}: {error.strerror or error}")
            return exits.CANNOT_ATTACH
        sys.stdout.write(f"{output}\n")
    elif as_json:
        sys.stdout.write(json.dumps(to_json(comparison), indent=2) + "\n")
    else:
        show(to_text(comparison))
    if comparison.refused:
        if output is not None or as_json:
            complain("these two cannot be compared: " + "; ".join(comparison.refused))
        return exits.CANNOT_ATTACH
    return exits.FINDINGS if comparison.worse else exits.OK
