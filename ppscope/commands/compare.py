"""`compare`: two snapshots or recordings, figure by figure."""

from __future__ import annotations

import json
from pathlib import Path

from ppscope import exits, stdout
from ppscope.commands.reading import Source, read
from ppscope.complain import complain
from ppscope.snapshot.compare import compare_documents
from ppscope.snapshot.compare_text import to_text
from ppscope.snapshot.comparison import SCHEMA, to_json
from ppscope.snapshot.files import named, why_not_over, write_private
from ppscope.snapshot.page_data import KEPT
from ppscope.snapshot.stretch import USUAL, Asked
from ppscope.snapshot.write import page


def compare(
    before: Path, after: Path, *, as_json: bool, output: Path | None, redact_paths: bool, asked: Asked = USUAL
) -> int:
    """Print what changed, or write it as a page; returns the exit code: 1 while a finding above `info` is left, 3
    when the two are not of one model under one load."""
    why = why_not_over(output, (before, after)) if output is not None else None
    if why:
        complain(why)
        return exits.USAGE
    sources: list[Source] = []
    problems: list[int] = []
    for path in (before, after):
        source = read(path, asked)
        if isinstance(source, Source):
            sources.append(source)
        else:
            problems.append(source)
    if problems:
        return problems[0]
    documents = [source.document(redact_paths=redact_paths) for source in sources]
    comparison = compare_documents(documents[0], documents[1], (before.name, after.name))
    if output is not None:
        drawn = [{name: value for name, value in document.items() if name not in KEPT} for document in documents]
        data = {"schema": SCHEMA, "comparison": to_json(comparison), "before": drawn[0], "after": drawn[1]}
        try:
            write_private(output, page(data))
        except OSError as error:
            complain(f"{named(output)}: {error.strerror or error}")
            return exits.CANNOT_ATTACH
        stdout.write_path(output)
    elif as_json:
        stdout.write_text(json.dumps(to_json(comparison), indent=2) + "\n")
    else:
        stdout.write_text(to_text(comparison))
    if comparison.refused:
        if output is not None or as_json:
            complain("these two cannot be compared: " + "; ".join(comparison.refused))
        return exits.CANNOT_ATTACH
    return exits.FINDINGS if comparison.worse else exits.OK
