"""Start an emulated server from Python and stop it again."""

from __future__ import annotations

import re
import select
import subprocess
import sys
import time
from types import TracebackType

ANNOUNCEMENT = re.compile(r"(started|ready) pid=(\d+) port=(\d+) folder=(.*)")
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0


class EmulatorError(RuntimeError):
    """The emulated server did not start; the message is one line."""


class EmulatedServer:
    """A running server. `pid` is the launcher's; after a restart `refresh` finds the new one. Use as a context manager, or call `stop`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.pid = process.pid
        self.port = 0
        self.folder = ""
        self._pending = b""

    def wait_for(self, state: str, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until the server says it is `started` (its processes exist) or `ready` (HTTP answers). Raises EmulatorError."""
        deadline = time.monotonic() + timeout_s
        while True:
            line = self._line(deadline)
            if line is None:
                self.stop()
                raise EmulatorError(f"the emulated server was not {state} within {timeout_s:.0f} s, or ended before")
            match = ANNOUNCEMENT.fullmatch(line)
            if match is None:
                continue
            self.pid, self.port, self.folder = int(match[2]), int(match[3]), match[4]
            if match[1] == state:
                return

    def _line(self, deadline: float) -> str | None:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        while b"\n" not in self._pending:
            readable, _, _ = select.select([descriptor], [], [], max(deadline - time.monotonic(), 0.0))
            data = self.process.stdout.read1(4096) if readable else b""  # type: ignore[attr-defined]
            if not data:
                return None
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode(errors="replace")

    @property
    def url(self) -> str:
        """Base of its HTTP paths."""
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> int:
        """End the server and everything it started; return its exit status. Safe to call again."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                # Its children die with it, and its detokenizer removes the folder.
                self.process.kill()
        status = self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        return status

    def __enter__(self) -> EmulatedServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start(
    scenario: str = "serial",
    pp: int = 8,
    *,
    tp: int = 1,
    port: int = 0,
    wait_until: str = "ready",
    extra: tuple[str, ...] = (),
    timeout_s: float = START_TIMEOUT_S,
) -> EmulatedServer:
    """Start a server and wait until it is `ready` (or only `started`).

    It ends when `stop` is called or when this process ends, however that happens. `extra` are further options of
    `python -m ppscope.emulator`. Raises EmulatorError.
    """
    isolated = ["-P"] if sys.version_info >= (3, 11) else []
    command = [sys.executable, *isolated, "-m", "ppscope.emulator", "--scenario", scenario, "--pp", str(pp)]
    command += ["--tp", str(tp), "--port", str(port), "--die-with-parent", *extra]
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")
    except OSError as error:
        raise EmulatorError(f"cannot start the emulated server: {error}") from error
    server = EmulatedServer(process)
    server.wait_for(wait_until, timeout_s)
    return server
