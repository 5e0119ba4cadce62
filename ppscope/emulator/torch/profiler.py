"""Named spans of the host thread, kept only while a profile runs."""

from __future__ import annotations

import time
from types import TracebackType

SPANS: list[tuple[str, int, int]] = []
"""(name, start_ns, end_ns) of the running profile, CLOCK_MONOTONIC."""
_state = {"recording": False}


def set_recording(on: bool) -> None:
    """Start with an empty list, or stop adding to it."""
    if on:
        SPANS.clear()
    _state["recording"] = on


class record_function:
    """A span around a block."""

    __slots__ = ("name", "start_ns")

    def __init__(self, name: str) -> None:
        self.name = name
        self.start_ns = 0

    def __enter__(self) -> record_function:
        self.start_ns = time.monotonic_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _state["recording"]:
            SPANS.append((self.name, self.start_ns, time.monotonic_ns()))
