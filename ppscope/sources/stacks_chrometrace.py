"""Reads what `py-spy record -f chrometrace -t -i` writes: per thread, which stack held from when to when."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from ppscope.sources.stacks_intern import Frame

_THREAD = re.compile(r"thread \((0x[0-9a-f]+|\d+)\)(?:: (.*))?", re.IGNORECASE | re.DOTALL)
_MAX_TS_US = 10**12
_MAX_DEPTH = 2000


class ChrometraceError(ValueError):
    """The file is not a trace that py-spy wrote; the message is one line."""


class _Args(msgspec.Struct):
    filename: str = ""
    line: int | None = None


class _Event(msgspec.Struct):
    name: str
    ph: str
    tid: int
    ts: Annotated[int, msgspec.Meta(ge=0, le=_MAX_TS_US)]
    args: _Args | None = None


_DECODER = msgspec.json.Decoder(list[_Event])


@dataclass
class ThreadTrace:
    """One thread of a window: `starts_us[i]`..`ends_us[i]` its stack was `stacks[i]`, outermost frame first.

    Times are microseconds since py-spy began; spans are in order, disjoint and not empty. `tid` is the thread's own number in
    its pid namespace, None when py-spy did not learn it.
    """

    tid: int | None = None
    name: str = ""
    starts_us: list[int] = field(default_factory=list)
    ends_us: list[int] = field(default_factory=list)
    stacks: list[tuple[Frame, ...]] = field(default_factory=list)

    def add(self, start_us: int, end_us: int, stack: tuple[Frame, ...]) -> None:
        """Append a span; a stack that goes on just grows."""
        if self.stacks and self.stacks[-1] == stack and self.ends_us[-1] == start_us:
            self.ends_us[-1] = end_us
            return
        self.starts_us.append(start_us)
        self.ends_us.append(end_us)
        self.stacks.append(stack)


@dataclass(frozen=True)
class WindowTrace:
    """What one window saw. `last_us` is the instant at which py-spy wrote the file, None when it saw nothing."""

    threads: list[ThreadTrace]
    first_us: int | None
    last_us: int | None


class _Thread:
    def __init__(self) -> None:
        self.trace = ThreadTrace()
        self.open: list[Frame] = []
        self.since_us = 0

    def feed(self, event: _Event) -> None:
        now = max(event.ts, self.since_us)
        if now > self.since_us:
            if self.open:
                self.trace.add(self.since_us, now, tuple(self.open[self.root() :]))
            self.since_us = now
        if event.ph == "E":
            if self.open:
                self.open.pop()
        elif len(self.open) < _MAX_DEPTH:
            args = event.args or _Args()
            if not self.open:
                self.name_from(event.name, args.filename)
            self.open.append((event.name, args.filename, args.line or None))

    def root(self) -> int:
        return 1 if self.open[0][1] == "" and _THREAD.fullmatch(self.open[0][0]) else 0

    def name_from(self, name: str, filename: str) -> None:
        match = _THREAD.fullmatch(name) if filename == "" else None
        if match:
            self.trace.tid = int(match[1], 0) if match[1][:2].lower() == "0x" else int(match[1][:18])
            self.trace.name = match[2] or ""


def parse_window(data: bytes) -> WindowTrace:
    """Spans of every thread of a window; raises `ChrometraceError` on anything py-spy would not write."""
    try:
        events = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ChrometraceError(f"py-spy's window cannot be read: {str(error).splitlines()[0][:200]}") from error
    threads: dict[int, _Thread] = {}
    first: int | None = None
    last: int | None = None
    for event in events:
        if event.ph not in ("B", "E"):
            continue
        thread = threads.get(event.tid)
        if thread is None:
            thread = threads[event.tid] = _Thread()
        thread.feed(event)
        first = event.ts if first is None else min(first, event.ts)
        last = event.ts if last is None else max(last, event.ts)
    return WindowTrace([thread.trace for thread in threads.values() if thread.trace.stacks], first, last)


def base_bounds(before_ns: int, interrupted_ns: int | None, done_ns: int, last_us: int) -> tuple[int, int]:
    """(instant that the file calls 0, half width of what is possible), both nanoseconds of CLOCK_MONOTONIC.

    py-spy cannot have begun before it was spawned; its last time stamp lies between the interrupt, where there was one, and
    the end of the process.
    """
    high = done_ns - last_us * 1000
    low = before_ns
    if interrupted_ns is not None and before_ns <= interrupted_ns - last_us * 1000 <= high:
        low = interrupted_ns - last_us * 1000
    if high < low:
        return low, 0
    return (low + high) // 2, (high - low) // 2
