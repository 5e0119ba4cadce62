"""Frames and stacks, each sent once and named by a number from then on; one table for every source of a stream."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Sequence

from ppscope.records import FrameDef, StackDef
from ppscope.sources.base import Emit

Frame = tuple[str, str, "int | None"]
"""(function, file, line) as the tool reported it."""

MAX_TEXT = 500
MAX_DEPTH = 400
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def clean(text: str) -> str:
    """A foreign name made safe to show: no control or direction characters, at most 500 characters (a file keeps its end)."""
    text = _CONTROL.sub("", text[-4 * MAX_TEXT :] if len(text) > 4 * MAX_TEXT else text)
    return text if len(text) <= MAX_TEXT else "…" + text[1 - MAX_TEXT :]


_FRAMES, _STACKS = itertools.count(), itertools.count()


class StackTable:
    """Numbers for frames and stacks, defined on the stream before their first use.

    A number is never used twice, also not by the table of the next server: a view keeps what an old one means. When the table is full
    it forgets everything and defines anew, so its memory is bounded; call `reset` too when definitions may not have reached the reader.
    """

    def __init__(self, emit: Emit, limit: int = 200_000) -> None:
        self._emit = emit
        self._limit = limit
        self._lock = threading.Lock()
        self._frames: dict[Frame, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}

    def stack(self, frames: Sequence[Frame]) -> int:
        """Number of a stack, outermost frame first; definitions go out first when it is new."""
        with self._lock:
            if len(self._stacks) >= self._limit or len(self._frames) >= self._limit:
                self._forget()
            ids = tuple(self._frame(frame) for frame in frames[-MAX_DEPTH:])
            known = self._stacks.get(ids)
            if known is None:
                known = self._stacks[ids] = next(_STACKS)
                self._emit(StackDef(known, ids))
            return known

    def reset(self) -> None:
        """Define everything anew from here on."""
        with self._lock:
            self._forget()

    def __len__(self) -> int:
        return len(self._stacks)

    def _forget(self) -> None:
        self._frames.clear()
        self._stacks.clear()

    def _frame(self, frame: Frame) -> int:
        known = self._frames.get(frame)
        if known is None:
            known = self._frames[frame] = next(_FRAMES)
            function, file, line = frame
            self._emit(FrameDef(known, clean(function), clean(file), line or None))
        return known
