"""A stream written to disk: bounded, in parts that each stand alone, readable up to wherever it was cut."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from ppscope.collect.stream import MAGIC, encode
from ppscope.records import AnyRecord, End, FrameDef, StackDef
from ppscope.snapshot.files import open_private
from ppscope.snapshot.window import Definitions, Facts, is_bulk

_PARTS = 4
"""A part is closed at a quarter of the whole size, so that never more than a quarter is lost when the oldest goes."""
_BUFFER = 64 * 1024


def part_paths(path: Path) -> list[Path]:
    """The closed parts of a recording, oldest first: `run.0001.pps`, `run.0002.pps` … for `run.pps`."""
    pattern = re.compile(re.escape(path.stem) + r"\.(\d{4,})" + re.escape(path.suffix))
    found = [(int(match[1]), entry) for entry in path.parent.iterdir() if (match := pattern.fullmatch(entry.name))]
    return [entry for _, entry in sorted(found)]


class Recorder:
    """Writes records to `path`; after `rotate_s` or a quarter of `max_bytes` the part is closed under a number and a new one begun.

    Every part begins with the facts so far and repeats each definition before its first use. The oldest parts go when all
    together are larger than `max_bytes`. `clock` is in seconds. Raises OSError as writing does.
    """

    def __init__(
        self, path: Path, max_bytes: int, rotate_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._rotate_s = rotate_s
        self._clock = clock
        self._definitions = Definitions()
        self._facts = Facts()
        self._written: set[int] = set()
        self._fd = -1
        self._buffer = bytearray()
        self._part_bytes = 0
        self._head_bytes = 0
        self._opened_s = 0.0
        self._parts = part_paths(path)
        self._number = 1 + max((int(part.suffixes[-2][1:]) for part in self._parts), default=0)
        self._own: list[tuple[Path, int]] = []

    @property
    def begun(self) -> bool:
        """Whether there is a file."""
        return self._fd >= 0

    def write(self, records: Iterable[AnyRecord]) -> None:
        """Take in records, and bring them to the file before this returns."""
        for record in records:
            if isinstance(record, FrameDef | StackDef):
                self._definitions.add(record)
                continue
            if not is_bulk(record):
                self._facts.add(record)
            if not self.begun or self._is_full():
                if self._facts.server is None:
                    continue
                self._begin_part()
                if not is_bulk(record):
                    continue  # it is one of the facts that a part begins with
            for definition in self._definitions.needed(record, self._written):
                self._put(definition)
            self._put(record)
        self._flush()

    def _is_full(self) -> bool:
        over = self._part_bytes - self._head_bytes > self._max_bytes // _PARTS
        return over or self._clock() - self._opened_s >= self._rotate_s

    def _begin_part(self) -> None:
        if self.begun:
            self._rotate()
        self._fd = open_private(self.path)
        self._opened_s = self._clock()
        self._written = set()
        self._part_bytes = 0
        self._append(MAGIC)
        for fact in self._facts.records():
            self._put(fact)
        self._head_bytes = self._part_bytes

    def _rotate(self) -> None:
        self._close_part()
        part = self.path.with_name(f"{self.path.stem}.{self._number:04d}{self.path.suffix}")
        os.replace(self.path, part)
        self._number += 1
        self._own.append((part, self._part_bytes))
        room = self._max_bytes - self._max_bytes // _PARTS - self._head_bytes
        while self._own and sum(size for _, size in self._own) > room:
            oldest, _ = self._own.pop(0)
            oldest.unlink(missing_ok=True)

    def _put(self, record: AnyRecord) -> None:
        self._append(encode(record))

    def _append(self, data: bytes) -> None:
        self._buffer += data
        self._part_bytes += len(data)
        if len(self._buffer) > _BUFFER:
            self._flush()

    def _flush(self) -> None:
        view = memoryview(bytes(self._buffer))
        self._buffer.clear()
        while view and self._fd >= 0:
            view = view[os.write(self._fd, view) :]

    def _close_part(self) -> None:
        self._flush()
        os.close(self._fd)
        self._fd = -1

    def close(self, end: End | None = None) -> None:
        """Write the End record and close the file."""
        if self.begun:
            if end is not None:
                self._put(end)
            self._close_part()
