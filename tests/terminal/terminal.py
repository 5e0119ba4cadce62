"""The real command in a pseudo-terminal, its screen read back through a terminal emulator."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil
import pyte

PPSCOPE = Path(sys.executable).with_name("ppscope")


_MODES = (1000, 1002, 1003, 1004, 1006, 1015, 1049, 2004)
"""Mouse, focus, the alternate screen, bracketed paste: what a screen switches on and has to switch off."""


class Terminal:
    """A command on a pty of its own. `text` is what a person would read now; `received` counts the bytes that were sent to it."""

    def __init__(
        self, command: Sequence[str], *, columns: int = 120, lines: int = 40, env: Mapping[str, str] | None = None
    ) -> None:
        self.received = 0
        self._cut = False
        self.raw = bytearray()
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self._lock = threading.Lock()
        self._master, slave = pty.openpty()
        self.resize(columns, lines)
        self._settings = termios.tcgetattr(slave)
        environment = {
            **os.environ,
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "LC_ALL": "C.UTF-8",
            **(env or {}),
        }
        self.process = subprocess.Popen(
            list(command), stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        while not self._cut:
            try:
                if not select.select([self._master], [], [], 0.2)[0]:
                    continue
                data = os.read(self._master, 65536)
            except (OSError, ValueError):
                return
            if not data:
                return
            self._take(data)

    def _take(self, data: bytes) -> None:
        with self._lock:
            self.received += len(data)
            self.raw += data
            self._stream.feed(data)

    @property
    def text(self) -> str:
        """The screen as text, one line a row."""
        with self._lock:
            return "\n".join(self._screen.display)

    @property
    def restored(self) -> bool:
        """Whether the terminal is as it was: its settings, the normal screen, a visible cursor, no reports of mouse or paste."""
        with self._lock:
            raw = bytes(self.raw)
        left_on = [mode for mode in _MODES if raw.rfind(b"\x1b[?%dh" % mode) > raw.rfind(b"\x1b[?%dl" % mode)]
        hidden = raw.rfind(b"\x1b[?25l") > raw.rfind(b"\x1b[?25h")
        return termios.tcgetattr(self._master) == self._settings and not left_on and not hidden

    def resize(self, columns: int, lines: int) -> None:
        """Give the terminal another size, as dragging a window does."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        with self._lock:
            self._screen.resize(lines, columns)

    def send(self, keys: str) -> None:
        """Type."""
        self.send_bytes(keys.encode())

    def send_bytes(self, data: bytes) -> None:
        """Send what no keyboard may be able to."""
        while data:
            data = data[os.write(self._master, data[:1024]) :]

    def wait_for(self, wanted: str | Callable[[str], bool], timeout_s: float = 30.0) -> str:
        """Wait until the screen shows a text; raises AssertionError with the screen otherwise."""
        seen = wanted if callable(wanted) else lambda text: wanted in text
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            text = self.text
            if seen(text):
                return text
            if self.process.poll() is not None:
                self._reader.join(1.0)
                if seen(self.text):
                    return self.text
                break
            time.sleep(0.02)
        raise AssertionError(f"not seen: {wanted!r}; exit code {self.process.poll()}; the screen was:\n{self.text}")

    def wait(self, timeout_s: float = 20.0) -> int:
        """Wait for the command's end; its exit code."""
        code = self.process.wait(timeout_s)
        self._reader.join(1.0)
        return code

    def descendants(self) -> list[psutil.Process]:
        """Every process below the command now."""
        try:
            return list(psutil.Process(self.process.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return []

    def cut(self) -> None:
        """Close the other side of the terminal, as a lost connection does."""
        self._cut = True
        self._reader.join(2.0)
        os.close(self._master)

    def close(self) -> None:
        """End the command, whatever it is doing."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        try:
            os.close(self._master)
        except OSError:
            pass


def all_gone(processes: Sequence[psutil.Process], timeout_s: float = 5.0) -> list[psutil.Process]:
    """Those that are still there after the time."""
    _, alive = psutil.wait_procs(list(processes), timeout=timeout_s)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
