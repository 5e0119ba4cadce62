"""From records to a snapshot file: what `ppscope snapshot` and the key `s` of the view share."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ppscope.records import AnyRecord, Server
from ppscope.snapshot.document import build
from ppscope.snapshot.files import named, numbered, why_not_writable, write_new
from ppscope.snapshot.paths import shorten_paths
from ppscope.snapshot.write import page

_PATIENCE_S = 1.5


def render(records: list[AnyRecord], *, redact_paths: bool = False) -> bytes:
    """The page of a recording."""
    return page(build(shorten_paths(records) if redact_paths else records))


class HasRecords(Protocol):
    """Where the records of a snapshot come from."""

    def records(self) -> list[AnyRecord]:
        """A stream that stands alone."""


class Saver:
    """What the view calls for a snapshot of the window as it is then; returns where it is, or will be in a moment.

    A minute of exact spans of many ranks takes seconds to write: that goes on in a thread, so that the view stays alive, and
    `late_problem` says how it ended. A call raises OSError for a folder that cannot be written to.
    """

    def __init__(self, window: HasRecords) -> None:
        self._window = window
        self._thread: threading.Thread | None = None
        self._problem: str | None = None
        self._path: Path | None = None

    def __call__(self) -> str:
        """Write a snapshot."""
        if self._thread is not None and self._thread.is_alive():
            raise OSError("the snapshot before is still being written")
        before = self.late_problem()
        records = self._window.records()
        path = Path(os.environ.get("PPSCOPE_SNAPSHOT_DIR") or "") / file_name(records)
        why = why_not_writable(path)
        if why:
            raise OSError(why)
        path = path.absolute()
        self._path = next(name for name in numbered(path) if not os.path.lexists(name))
        self._thread = threading.Thread(target=self._write, args=(path, records), name="snapshot")
        self._thread.start()
        self._thread.join(_PATIENCE_S)
        more = " (being written)" if self._thread.is_alive() else ""
        problem = self.late_problem()
        if problem is not None:
            raise OSError(problem)
        return f"{self._path}{more}" + (f"; the one before was not written: {before}" if before else "")

    def late_problem(self) -> str | None:
        """Why one that was being written when a call returned has failed since; told once."""
        problem, self._problem = self._problem, None
        return problem

    def finish(self, say: Callable[[str], None]) -> str | None:
        """Wait for what is being written, which is said; the same."""
        if self._thread is not None and self._thread.is_alive():
            say("the snapshot is still being written")
            self._thread.join()
        return self.late_problem()

    def _write(self, path: Path, records: list[AnyRecord]) -> None:
        try:
            self._path = write_new(path, render(records))
        except OSError as error:
            self._problem = f"{error.strerror or error}: {named(path)}"  # the reason first: the line may be cut
        except Exception as error:  # noqa: BLE001  whatever it is, the view goes on and says it
            self._problem = str(error) or type(error).__name__


def file_name(records: list[AnyRecord]) -> str:
    """`ppscope-MODEL-TIME.html`; only plain characters of the model's name."""
    server = next((record for record in records if isinstance(record, Server)), None)
    model = (server.model or "") if server is not None else ""
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", model.rstrip("/").rpartition("/")[2]).strip("-.")[:60]
    return f"ppscope-{word or 'server'}-{time.strftime('%Y%m%d-%H%M%S')}.html"
