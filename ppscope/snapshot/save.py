"""From records to a snapshot file: what `ppscope snapshot` and the key `s` of the view share."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from ppscope.records import AnyRecord, Server
from ppscope.snapshot.document import build
from ppscope.snapshot.files import write_private
from ppscope.snapshot.paths import shorten_paths
from ppscope.snapshot.window import RecordWindow
from ppscope.snapshot.write import page


def render(records: list[AnyRecord], *, redact_paths: bool = False) -> bytes:
    """The page of a recording."""
    return page(build(shorten_paths(records) if redact_paths else records))


def saver(window: RecordWindow) -> Callable[[], str]:
    """What the view calls for a snapshot: writes one of the window as it is then, and says where. Raises OSError."""

    def save() -> str:
        records = window.records()
        folder = Path(os.environ.get("PPSCOPE_SNAPSHOT_DIR") or Path.cwd())
        path = folder / file_name(records)
        write_private(path, render(records))
        return str(path)

    return save


def file_name(records: list[AnyRecord]) -> str:
    """`ppscope-MODEL-TIME.html`; only plain characters of the model's name."""
    server = next((record for record in records if isinstance(record, Server)), None)
    model = (server.model or "") if server is not None else ""
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", model.rstrip("/").rpartition("/")[2]).strip("-.")[:60]
    return f"ppscope-{word or 'server'}-{time.strftime('%Y%m%d-%H%M%S')}.html"
