"""Who launched a kernel: the operator and the Python stack around a launch call, from a second reading of the file.

Operators and Python functions are most of a file, so they are read again only for the launches somebody asks about. They are joined by
thread and time, which holds for every age of trace (`External id` changed its meaning twice).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ppscope.trace.events import EventStream
from ppscope.trace.names import OPERATOR_CATEGORIES, PYTHON_CATEGORIES
from ppscope.trace.source import TraceSource

Thread = tuple[int | str, int | str]


class Caller(msgspec.Struct, gc=False):
    """`op` is the innermost operator, None without one; `stack` are Python frames, outermost first, empty without with_stack."""

    op: str | None = None
    stack: list[str] = []

    @property
    def line(self) -> str | None:
        """The innermost frame that belongs to neither torch, Triton nor the interpreter, as `file.py(line): function`."""
        for frame in reversed(self.stack):
            file = frame.split("(", 1)[0]
            if not frame.startswith(("<", "nn.Module")) and not any(part in file for part in _NOT_THE_CALLER):
                return frame
        return None


class _OldArguments(msgspec.Struct, gc=False):
    stack: str | None = msgspec.field(name="Call stack", default=None)


class _Frame(msgspec.Struct, gc=False):
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: int | float = math.nan
    dur: int | float = 0
    args: _OldArguments | None = None


_NOT_THE_CALLER = ("torch/", "triton/runtime/", "triton/backends/", "threading.py", "contextlib.py")
_LONGEST_US = 1e15
_FRAMES = OPERATOR_CATEGORIES | PYTHON_CATEGORIES


def find_callers(path: str | Path, launches: Sequence[tuple[Thread, int]]) -> list[Caller]:
    """Returns the caller of every launch, given as (pid and tid, start in nanoseconds on the file's clock), in the same order."""
    by_thread: dict[Thread, list[tuple[int, int]]] = {}
    for index, (thread, at_ns) in enumerate(launches):
        by_thread.setdefault(thread, []).append((at_ns, index))
    for held in by_thread.values():
        held.sort()
    times = {thread: [at_ns for at_ns, _ in held] for thread, held in by_thread.items()}
    found: list[list[tuple[int, int, bool, _Frame]]] = [[] for _ in launches]
    # Most frames lie outside; a double of an epoch in microseconds is good to a quarter of one.
    first_us = min((at_ns for _, at_ns in launches), default=0) / 1000 - 1
    last_us = max((at_ns for _, at_ns in launches), default=0) / 1000 + 1
    for batch in EventStream(TraceSource(path), _Frame).batches():
        for frame in batch:
            # A NaN compares false and falls out here.
            if frame.cat not in _FRAMES or not (frame.ts <= last_us and frame.ts + frame.dur >= first_us):
                continue
            at = times.get((frame.pid, frame.tid))
            if at is None or not abs(frame.dur) < _LONGEST_US:
                continue
            start_ns = round(frame.ts * 1000)
            end_ns = start_ns + round(frame.dur * 1000)
            held = by_thread[frame.pid, frame.tid]
            for place in range(bisect_left(at, start_ns), bisect_right(at, end_ns)):
                found[held[place][1]].append((start_ns, -end_ns, frame.cat in OPERATOR_CATEGORIES, frame))
    return [_caller(frames) for frames in found]


def _caller(frames: list[tuple[int, int, bool, _Frame]]) -> Caller:
    frames.sort(key=lambda held: held[:2])
    operators = [frame for _, _, is_operator, frame in frames if is_operator]
    stack = [frame.name for _, _, is_operator, frame in frames if not is_operator]
    if not stack and operators:
        # 2021 wrote the stack as text, innermost first.
        text = next((frame.args.stack for frame in reversed(operators) if frame.args and frame.args.stack), "")
        stack = [part for part in reversed(text.split(";")) if part]
    return Caller(operators[-1].name if operators else None, stack)
