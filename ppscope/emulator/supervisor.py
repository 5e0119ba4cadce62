"""A parent that starts the server a second time, with the same command and port: for views that have to notice a restart."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from types import FrameType

from ppscope.emulator.bootstrap import bound_socket

PAUSE_S = 0.5
POLL_S = 0.2


class Supervisor:
    """Runs one launcher after the other; `argv` are the emulator's own options without --restart-after and --port."""

    def __init__(self, argv: list[str], port: int, restart_after_s: float, *, end_with_stdin: bool) -> None:
        if port == 0:
            with bound_socket(0) as probe:
                port = probe.getsockname()[1]
        self._command = [sys.executable, "-m", "ppscope.emulator", *argv, "--port", str(port)]
        self._restart_after_s = restart_after_s
        self._end_with_stdin = end_with_stdin
        self._told = False

    def run(self) -> int:
        """Serve, restart once, serve until told to end; return the last launcher's exit status."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        status = self._serve(self._restart_after_s)
        if self._told:
            return status
        time.sleep(PAUSE_S)
        return self._serve(None)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._told = True

    def _serve(self, seconds: float | None) -> int:
        # The launcher ends when this process does, because its standard input closes.
        launcher = subprocess.Popen([*self._command, "--die-with-parent"], stdin=subprocess.PIPE, cwd="/")
        until = None if seconds is None else time.monotonic() + seconds
        while launcher.poll() is None and not self._told and (until is None or time.monotonic() < until):
            self._wait()
        if launcher.poll() is None:
            launcher.terminate()
        if launcher.stdin is not None:
            launcher.stdin.close()
        return launcher.wait()

    def _wait(self) -> None:
        if not self._end_with_stdin:
            time.sleep(POLL_S)
            return
        readable, _, _ = select.select([0], [], [], POLL_S)
        if readable and not os.read(0, 4096):
            self._told = True
