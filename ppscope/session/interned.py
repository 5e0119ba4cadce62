"""Frames and stacks by the ids the stream gave them, and the phase each stack means."""

from __future__ import annotations

from ppscope.records import FrameDef, LoopSample, StackDef
from ppscope.target.phases import Meaning, PhaseTable

Frame = tuple[str, str, int | None]
"""(function, file, line)"""


class Interned:
    """The stream's intern table. A stack whose definition was dropped has no frames and is `other`."""

    def __init__(self, table: PhaseTable) -> None:
        self.table = table
        self._frames: dict[int, Frame] = {}
        self._stacks: dict[int, tuple[int, ...]] = {}
        self._meanings: dict[int, Meaning] = {}
        self._by_request: dict[int, bool] = {}
        self._unknown = Meaning(table.other)

    def add(self, record: FrameDef | StackDef) -> None:
        """Take in a definition; one that comes again under the same number is what it means from then on."""
        if isinstance(record, FrameDef):
            self._frames[record.id] = (record.function, record.file, record.line)
        else:
            # The same numbers may be of other frames: a recording in which an older ppscope went on to the next server.
            self._meanings.pop(record.id, None)
            self._by_request.pop(record.id, None)
            self._stacks[record.id] = record.frames

    def frames(self, stack: int) -> list[Frame]:
        """A stack's frames, outermost first; empty for one that is not known."""
        unknown: Frame = ("?", "", None)
        return [self._frames.get(frame, unknown) for frame in self._stacks.get(stack, ())]

    def meaning(self, stack: int) -> Meaning:
        """What a stack means, worked out once."""
        meaning = self._meanings.get(stack)
        if meaning is None:
            if stack not in self._stacks:
                return self._unknown
            meaning = self._meanings[stack] = self.table.meaning(self.frames(stack))
        return meaning

    def phase(self, stack: int) -> int:
        """Phase index of a stack."""
        return self.meaning(stack).phase

    def by_request(self, stack: int) -> bool:
        """Whether a stack is in a loop over the requests of a micro-batch, worked out once."""
        found = self._by_request.get(stack)
        if found is None:
            found = self.table.by_request(self.frames(stack))
            if stack in self._stacks:
                self._by_request[stack] = found
        return found

    def micro_batch(self, sample: LoopSample) -> int | None:
        """The slot that the time of a dump belongs to; None where its phase belongs to none."""
        return {"mb": sample.mb_id, "next": sample.next_mb_id}.get(self.meaning(sample.stack).batch)
