"""Sampled spans as columns: the last two minutes at hand, what is older compressed in blocks.

A span at hand takes 24 bytes and a compressed one about 7: ten minutes of 64 ranks at 50 Hz are 960,000 spans.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import lru_cache

BLOCK = 512
"""Spans that are allocated, compressed and dropped together: all of one size, so that memory is used again and does not scatter."""
AT_HAND_NS = 120 * 1_000_000_000

Row = tuple[int, int, int, int, int]
"""(start_ns, end_ns, phase, stack, micro-batch or -1)"""
Columns = tuple["array[int]", "array[int]", "array[int]", "array[int]", "array[int]"]
_TYPES = ("q", "q", "h", "i", "h")


class SpanColumns:
    """Spans in order and disjoint, appended at the newest end and dropped at the oldest."""

    def __init__(self) -> None:
        self._blocks: list[Columns | bytes] = []
        self._starts = array("q")
        self._ends = array("q")
        self._compressed = 0
        self._filled = BLOCK

    def __len__(self) -> int:
        return (len(self._blocks) - 1) * BLOCK + self._filled

    @property
    def extent(self) -> tuple[int, int] | None:
        """Oldest start and newest end, None while there is nothing."""
        return (self._starts[0], self._ends[-1]) if self._blocks else None

    def append(self, row: Row) -> bool:
        """Append a span that starts where the last one ended or later; True when it begins a block."""
        opened = self._filled == BLOCK
        if opened:
            self._compress(row[1] - AT_HAND_NS)
            self._blocks.append(_empty())
            self._starts.append(row[0])
            self._ends.append(row[1])
            self._filled = 0
        columns = self._blocks[-1]
        assert not isinstance(columns, bytes)
        starts, ends, phases, stacks, micro_batches = columns
        at = self._filled
        starts[at], ends[at], phases[at], stacks[at], micro_batches[at] = row
        self._filled = at + 1
        self._ends[-1] = row[1]
        return opened

    def _compress(self, before_ns: int) -> None:
        while self._compressed < len(self._blocks) and self._ends[self._compressed] < before_ns:
            columns = self._blocks[self._compressed]
            if not isinstance(columns, bytes):
                self._blocks[self._compressed] = _packed(columns)
            self._compressed += 1

    def drop_before(self, before_ns: int) -> None:
        """Forget the whole blocks that end before an instant, but for the newest."""
        gone = min(bisect_left(self._ends, before_ns), len(self._blocks) - 1)
        if gone > 0:
            del self._blocks[:gone], self._starts[:gone], self._ends[:gone]
            self._compressed = max(self._compressed - gone, 0)

    def touching(self, start_ns: int, end_ns: int) -> Iterator[Row]:
        """Spans that touch a window, in order."""
        first = bisect_right(self._ends, start_ns)
        for index in range(first, bisect_left(self._starts, end_ns, lo=first)):
            block = self._blocks[index]
            columns = _unpacked(block) if isinstance(block, bytes) else block
            size = self._filled if index == len(self._blocks) - 1 else BLOCK
            begin = bisect_right(columns[1], start_ns, 0, size)
            upto = bisect_left(columns[0], end_ns, begin, size)
            yield from zip(*(column[begin:upto] for column in columns), strict=True)

    def mark_micro_batch(self, at_ns: int, phase: int, micro_batch: int) -> bool:
        """Give the span at an instant its micro-batch, if that span is at hand and in this phase; True when one was marked."""
        index = bisect_right(self._starts, at_ns) - 1
        columns = self._blocks[index] if index >= 0 else b""
        if isinstance(columns, bytes):
            return False
        starts, ends, phases, _, micro_batches = columns
        at = bisect_right(starts, at_ns, 0, self._filled if index == len(self._blocks) - 1 else BLOCK) - 1
        if ends[at] < at_ns or phases[at] != phase:
            return False
        micro_batches[at] = micro_batch
        return True


def _empty() -> Columns:
    starts, ends, phases, stacks, micro_batches = (array(kind, [0]) * BLOCK for kind in _TYPES)
    return starts, ends, phases, stacks, micro_batches


def _packed(columns: Columns) -> bytes:
    starts, ends, *others = columns
    # Spans mostly touch, so gaps and lengths compress where instants would not.
    gaps = array("q", [starts[0], *(start - end for start, end in zip(starts[1:], ends[:-1], strict=True))])
    lengths = array("q", [end - start for start, end in zip(starts, ends, strict=True)])
    return zlib.compress(b"".join(column.tobytes() for column in (gaps, lengths, *others)), 1)


@lru_cache(maxsize=256)
def _unpacked(block: bytes) -> Columns:
    raw, at = zlib.decompress(block), 0
    columns = _empty()
    for column in columns:
        size = BLOCK * column.itemsize
        memoryview(column).cast("B")[:] = raw[at : at + size]
        at += size
    starts, ends, *_ = columns
    newest = 0
    for i in range(BLOCK):
        starts[i] += newest
        newest = starts[i] + ends[i]
        ends[i] = newest
    return columns
