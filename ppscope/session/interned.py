"""Frames and stacks by the ids the stream gave them, and the phase each stack means."""

from __future__ import annotations

from ppscope.records import FrameDef, StackDef
from ppscope.target.phases import PhaseTable

Frame = tuple[str, str, int | None]
"""(function, file, line)"""


class Interned:
    """The stream's intern table. A stack whose definition was dropped has no frames and is `other`."""

    def __init__(self, table: PhaseTable) -> None:
        self.table = table
        self._frames: dict[int, Frame] = {}
        self._stacks: dict[int, tuple[int, ...]] = {}
        self._phases: dict[int, int] = {}
        self._other = table.by_name["other"]

    def add(self, record: FrameDef | StackDef) -> None:
        """Take in a definition."""
        if isinstance(record, FrameDef):
            self._frames[record.id] = (record.function, record.file, record.line)
        else:
            self._stacks[record.id] = record.frames

    def frames(self, stack: int) -> list[Frame]:
        """A stack's frames, outermost first; empty for one that is not known."""
        unknown: Frame = ("?", "", None)
        return [self._frames.get(frame, unknown) for frame in self._stacks.get(stack, ())]

    def phase(self, stack: int) -> int:
        """Phase index of a stack, worked out once."""
        phase = self._phases.get(stack)
        if phase is None:
            if stack not in self._stacks:
                return self._other
            phase = self._phases[stack] = self.table.classify(self.frames(stack))
        return phase
