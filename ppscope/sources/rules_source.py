"""The rules source: what the installed SGLang's own source says about CUDA graphs, read once in a niced child and cached.

Beside the rules it reads the number of layers from the model's config.json, since both lie in files of the target.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ppscope.records import Rules, Server, Settings
from ppscope.signals import killer
from ppscope.sources.base import Emit, Source
from ppscope.sources.model_config import model_settings

DELAY_S = 2.0
"""The first seconds belong to what the screen shows first."""
TIMEOUT_S = 120.0

Where = Callable[[], "tuple[str | None, str]"]
"""Gives the package folder as it can be opened from here (None: not found), and the root of the target's files (`/proc/PID/root`)."""


class RulesSource(Source):
    """Sends one `Rules` record; an emulated server has no SGLang to read and gets none."""

    name = "rules"

    def __init__(self, emit: Emit, where: Where, delay_s: float = DELAY_S) -> None:
        super().__init__(emit)
        self._where = where
        self._delay_s = delay_s
        self._child: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._server: Server | None = None

    def start(self, server: Server) -> None:
        """Read in a little while."""
        self._server = server
        self._thread = threading.Thread(target=self._run, name="ppscope-rules", daemon=True)
        self._thread.start()

    def update(self, server: Server) -> None:
        """Keep the newest word of the server: its model may become known late."""
        self._server = server

    def stop(self) -> None:
        """End the reading child."""
        self.stopping.set()
        child = self._child
        if child is not None and child.poll() is None:
            child.kill()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(2.0)

    def children(self) -> tuple[int, ...]:
        """Pid of the child that reads now."""
        child = self._child
        return () if child is None else (child.pid,)

    def _run(self) -> None:
        try:
            if self.stopping.wait(self._delay_s) or self._server is None:
                return
            package, root = self._where()
            if (values := model_settings(self._server, root)) and not self.stopping.is_set():
                self.emit(Settings(time.monotonic_ns(), "model", values))
            if not self._server.emulated:
                self._read(package)
        except Exception as error:  # noqa: BLE001  a source fails alone and says so
            self._fail(f"the graph rules could not be read: {type(error).__name__}: {error}")

    def _read(self, package: str | None) -> None:
        if package is None:
            self._fail("the installed SGLang was not found, so its graph rules are not known", "off")
            return
        from ppscope.sources import rules_cache  # here: it brings the reader of rules, which the first second needs not

        book, problem = rules_cache.load(Path(package)), ""
        if book is None:
            book, problem = self._in_child(package)
            if book:
                rules_cache.store(Path(package), book)
        if self.stopping.is_set():
            return
        version = self._server.version if self._server else None
        self.emit(Rules(time.monotonic_ns(), version, package, book or b"", problem))
        if book:
            self.status("ok")
        else:
            self._fail(problem, emit_record=False)

    def _fail(self, problem: str, state: str = "degraded", *, emit_record: bool = True) -> None:
        if self.stopping.is_set():
            return
        if emit_record:
            self.emit(Rules(time.monotonic_ns(), None, "", b"", problem))
        self.status(state, problem, "ppscope rules --source DIR" if state == "degraded" else "")

    def _in_child(self, package: str) -> tuple[bytes, str]:
        argv = [sys.executable, *(["-P"] if sys.version_info >= (3, 11) else []), "-m", "ppscope.sources.rules_child"]
        try:
            child = subprocess.Popen(
                [*argv, package],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            return b"", f"no process starts to read the graph rules: {error.strerror or error}"
        self._child = child
        try:
            if self.stopping.is_set():
                child.kill()
            book, complaint = child.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            return b"", f"reading the graph rules took longer than {TIMEOUT_S:.0f} s"
        finally:
            self._child = None
        if child.returncode:
            lines = complaint.decode(errors="replace").strip().splitlines()
            if killed_by := killer(child.returncode):
                return b"", f"the rule reader was killed by {killed_by}"
            return b"", lines[-1] if lines else f"the rule reader ended with {child.returncode}"
        return book, ""


def where_of(path: str | None, launcher_pid: int) -> tuple[str | None, str]:
    """A package folder that can be read from here, and the root of the target's files."""
    root = f"/proc/{launcher_pid}/root"
    return (path if path is not None and os.access(path, os.R_OK | os.X_OK) else None), root
