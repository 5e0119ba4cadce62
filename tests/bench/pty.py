"""A command on a terminal of its own, and when its answers to keys arrive."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Mapping, Sequence

from tests.terminal.terminal import Terminal


class TimedTerminal(Terminal):
    """Notes when every piece of output came, and interprets none of it: that would cost more than what is measured."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self.came: list[tuple[float, int]] = []
        self._news = threading.Condition()
        super().__init__(command, columns=160, lines=50, env=env)

    def __enter__(self) -> TimedTerminal:
        return self

    def _take(self, data: bytes) -> None:
        with self._news:
            self.raw += data
            self.received += len(data)
            self.came.append((time.perf_counter(), self.received))
            self._news.notify_all()

    def when(self, marker: bytes, start: int, timeout_s: float) -> float | None:
        """When the last byte of a text came that was sent after the first `start` bytes; None when it did not."""
        with self._news:
            self._news.wait_for(lambda: self.raw.find(marker, start) >= 0, timeout_s)
            found = self.raw.find(marker, start)
            if found < 0:
                return None
            return next(at for at, received in self.came if received >= found + len(marker))

    def press(self, key: str, marker: bytes, timeout_s: float = 3.0) -> float | None:
        """Milliseconds from a key to the text that answers it; None when it never came."""
        start, pressed = self.received, time.perf_counter()
        self.send(key)
        answered = self.when(marker, start, timeout_s)
        return None if answered is None else (answered - pressed) * 1e3

    def leave(self, keys: str) -> None:
        """Type what ends the command; one that does not end by it is terminated with the block."""
        try:
            self.send(keys)
            self.process.wait(5)
        except (OSError, subprocess.TimeoutExpired):
            return
