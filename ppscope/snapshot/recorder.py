"""A stream written to disk: bounded, in parts that each stand alone, readable up to wherever it was cut."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ppscope.collect.stream import MAGIC, encode
from ppscope.records import AnyRecord, End, FrameDef, StackDef
from ppscope.snapshot.files import identity, named, open_private, why_in_use
from ppscope.snapshot.window import Definitions, Facts, is_bulk

_PARTS = 4
"""A part is closed at a quarter of the whole size, so that never more than a quarter is lost when the oldest goes."""
_BUFFER = 64 * 1024


def part_paths(path: Path) -> list[Path]:
    """The closed parts of a recording, oldest first: `run.0001.pps`, `run.0002.pps` … for `run.pps`. Raises OSError."""
    return [part for _, part in _numbered(path)]


def named_parts(parts: Sequence[Path]) -> str:
    """Parts for a message: `run.0001.pps, run.0002.pps`, of more than three `run.0001.pps … run.0143.pps`."""
    names = [named(Path(part.name)) for part in parts]
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} … {names[-1]}"


def _numbered(path: Path) -> list[tuple[int, Path]]:
    pattern = re.compile(re.escape(path.stem) + r"\.(\d{4,})" + re.escape(path.suffix))
    try:
        entries = list(path.parent.iterdir())
    except OSError as error:
        raise OSError(error.errno, f"its folder cannot be listed: {error.strerror}") from None
    return sorted((int(match[1]), entry) for entry in entries if (match := pattern.fullmatch(entry.name)))


class Recorder:
    """Writes records to `path`; after `rotate_s` or a quarter of `max_bytes` the part is closed under a number and a new one begun.

    Every part begins with the facts so far and repeats each definition before its first use. The oldest parts go when all
    together are larger than `max_bytes`. `clock` is in seconds, `tell` takes a line for the user. Raises OSError as writing
    does, and where somebody else is writing `path` or may be.
    """

    def __init__(
        self,
        path: Path,
        max_bytes: int,
        rotate_s: float,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._rotate_s = rotate_s
        self._clock = clock
        self._tell = tell
        self._definitions = Definitions()
        self._facts = Facts()
        self._written: set[int] = set()
        self._fd = -1
        self._buffer = bytearray()
        self._part_bytes = 0
        self._head_bytes = 0
        self._opened_s = 0.0
        self._number = 1 + max((number for number, _ in _numbered(path)), default=0)
        self._own: list[tuple[Path, int, tuple[int, int] | None]] = []
        self._refuse_second_writer()

    @property
    def begun(self) -> bool:
        """Whether there is a file."""
        return self._fd >= 0

    @property
    def is_in_place(self) -> bool:
        """Whether `path` is still the file that is written: others may have moved, removed or replaced it."""
        return self.begun and identity(self.path) == identity(self._fd)

    @property
    def earlier_parts(self) -> list[Path]:
        """The closed parts of this recording that are still there, oldest first."""
        return [part for part, _, file in self._own if identity(part) == file]

    def _refuse_second_writer(self) -> None:
        why = why_in_use(self.path)
        if why is not None:
            raise OSError(errno.EBUSY, f"{why}; choose another name")

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
        else:
            self._refuse_second_writer()
        self._fd = open_private(self.path)
        self._opened_s = self._clock()
        self._written = set()
        self._part_bytes = 0
        self._append(MAGIC)
        for fact in self._facts.records():
            self._put(fact)
        self._head_bytes = self._part_bytes

    def _rotate(self) -> None:
        moved = not self.is_in_place
        self._close_part()
        if moved:
            self._leave_name()
        else:
            self._own.append(self._put_away())
        room = self._max_bytes - self._max_bytes // _PARTS - self._head_bytes
        while self._own and sum(size for _, size, _ in self._own) > room:
            oldest, _, file = self._own.pop(0)
            if identity(oldest) == file:
                oldest.unlink(missing_ok=True)

    def _put_away(self) -> tuple[Path, int, tuple[int, int] | None]:
        """Give the closed part its number."""
        while (part := self._name(f".{self._number:04d}")).exists():
            self._number += 1
        os.replace(self.path, part)
        return part, self._part_bytes, identity(part)

    def _leave_name(self) -> None:
        """The file was taken away under us: it is whoever did that's now, and what may lie in its place is not ours either."""
        was = named(self.path)
        if not self.path.exists():
            self._tell(
                f"{was} was moved or removed while it was written; the recording goes on in a new file of that name"
            )
            return
        number = 2
        while self._name(f"-{number}").exists():
            number += 1
        self.path = self._name(f"-{number}")
        self._tell(f"{was} is another file now; the recording goes on in {named(self.path)}")

    def _name(self, more: str) -> Path:
        return self.path.with_name(f"{self.path.stem}{more}{self.path.suffix}")

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
