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
        command = [*self._command, "--die-with-parent"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/") as launcher:
            assert launcher.stdout is not None
            until: float | None = None
            watched = [launcher.stdout.fileno(), *([0] if self._end_with_stdin else [])]
            while launcher.poll() is None and not self._told and (until is None or time.monotonic() < until):
                readable, _, _ = select.select(watched, [], [], POLL_S)
                if 0 in readable and not os.read(0, 4096):
                    self._told = True
                elif watched[0] in readable and self._relay(watched[0]) and seconds is not None:
                    until = time.monotonic() + seconds
            if launcher.poll() is None:
                launcher.terminate()
            return launcher.wait()

    def _relay(self, descriptor: int) -> bool:
        """Pass the launcher's announcements on; return whether one says that it is ready."""
        data = os.read(descriptor, 4096)
        os.write(1, data)
        return b"ready " in data
