"""A line on stderr that says how far a long command is; nothing where stderr is no terminal."""

from __future__ import annotations

import sys
import time


class Progress:
    """Says how long was looked of how many `seconds`, or `most` while something is missing; the first `tell` starts the clock."""

    def __init__(self, seconds: float, most: float) -> None:
        self._seconds = seconds
        self._most = most
        self._began_s: float | None = None
        self._shown = ""

    def tell(self) -> None:
        """Draw the line anew where it changed."""
        now_s = time.monotonic()
        if self._began_s is None:
            self._began_s = now_s
        gone_s = now_s - self._began_s
        text = f"looking, {gone_s:.0f} of {self._seconds:.0f} s"
        if gone_s > self._seconds:
            text = f"looking on for what is still missing, {gone_s:.0f} s of at most {self._most:.0f}"
        self.say(text)

    def say(self, text: str) -> None:
        """Draw a line of ASCII text."""
        if text != self._shown and sys.stderr.isatty():
            self._shown = text
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            self._shown = ""
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
