"""Reads one ring: what is new since the last look, whole records only, and how many were lost."""

from __future__ import annotations

import json
import mmap
import os
from typing import NamedTuple

from ppscope.probe import layout
from ppscope.records import ProbeSpans, RankKey
from ppscope.sources.probe_folder import RefusedError

_AHEAD = 512
"""The header's count is a loop turn old: so many records beyond it are looked at."""
_MARGIN = 256
"""Records nearest to being overwritten are left alone."""
_FRESH_NS = 1_000_000
_WORDS = layout.RECORD.size // 8


class Head(NamedTuple):
    """The ring's header: what does not change, and the counts of the last loop turn."""

    capacity: int
    flags: int
    pid: int
    tid: int
    started_ticks: int
    slots: int | None
    written: int
    turns: int
    beat_ns: int
    errors: int
    resyncs: int
    gpu_error_ns: int | None
    wrapped: tuple[str, ...]
    missing: tuple[str, ...]
    error: str
    gpu_timing: str

    @property
    def awake(self) -> bool:
        """Whether spans are being written."""
        return bool(self.flags & layout.AWAKE)


class RingReader:
    """A ring mapped for reading. Raises RefusedError for a file that is no ring, or one of another version.

    The descriptor is closed. `lost` counts records that were overwritten before they were read, `lost_ns` is when that was last noticed.
    """

    def __init__(self, fd: int) -> None:
        try:
            size = os.fstat(fd).st_size
            if size < layout.HEADER_BYTES:
                raise RefusedError("the probe's ring is no ring: too short")
            self._map = mmap.mmap(fd, size, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise RefusedError(f"the probe's ring cannot be mapped: {error}") from None
        finally:
            os.close(fd)
        fixed = layout.FIXED.unpack_from(self._map)
        if fixed[0] != layout.MAGIC:
            raise RefusedError("the probe's ring is no ring: wrong magic")
        if fixed[1] != layout.VERSION:
            raise RefusedError(
                f"the probe in this server writes version {fixed[1]}, this ppscope reads version {layout.VERSION}",
                "attach with the ppscope that launched the server, or launch it with this one",
            )
        self._capacity: int = fixed[3]
        if (
            fixed[2] != layout.RECORD.size
            or size < layout.HEADER_BYTES + self._capacity * fixed[2]
            or not self._capacity
        ):
            raise RefusedError("the probe's ring is damaged: its sizes do not fit")
        self._next: int | None = None
        self._unsaid = 0
        self.lost = 0
        self.lost_ns: int | None = None

    def close(self) -> None:
        """Unmap."""
        self._map.close()

    def head(self) -> Head:
        """The header as it is now."""
        fixed = layout.FIXED.unpack_from(self._map)
        written, turns, beat_ns, errors, resyncs, gpu_error = layout.LIVE.unpack_from(self._map, layout.LIVE_OFFSET)
        text: object = {}
        if 0 < fixed[-1] <= layout.TEXT_LIMIT:
            try:
                text = json.loads(self._map[layout.TEXT_OFFSET : layout.TEXT_OFFSET + fixed[-1]])
            except ValueError:
                text = {}
        facts = text if isinstance(text, dict) else {}

        def names(key: str) -> tuple[str, ...]:
            value = facts.get(key)
            return tuple(str(name) for name in value) if isinstance(value, list) else ()

        return Head(
            capacity=self._capacity, flags=fixed[4], pid=fixed[5], tid=fixed[6], started_ticks=fixed[7],
            slots=fixed[13] if fixed[13] > 0 else None, written=written, turns=turns, beat_ns=beat_ns, errors=errors,
            resyncs=resyncs, gpu_error_ns=gpu_error if gpu_error >= 0 else None, wrapped=names("wrapped"),
            missing=names("missing"), error=str(facts.get("error", "")), gpu_timing=str(facts.get("gpu_timing", "")),
        )  # fmt: skip

    def _copy(self, first: int, upto: int) -> bytes:
        # Slots of records first..upto-1, at most a whole ring of them.
        size, head, capacity = layout.RECORD.size, layout.HEADER_BYTES, self._capacity
        begin, end = first % capacity, upto % capacity
        if begin < end:
            return self._map[head + begin * size : head + end * size]
        return self._map[head + begin * size : head + capacity * size] + self._map[head : head + end * size]

    def _oldest(self, written: int) -> int:
        # The oldest record that is safe to read: the writer is at most so far beyond what it has told.
        return max(written - self._capacity + _MARGIN + _AHEAD, 1)

    def _skip_to(self, sequence: int, now_ns: int) -> None:
        missed = sequence - (self._next or sequence)
        if missed > 0:
            self.lost_ns = now_ns
        self._next = sequence
        self._unsaid += missed
        self.lost += missed

    def read(self, rank: RankKey, now_ns: int) -> ProbeSpans | None:
        """What was written since the last call, None when nothing was.

        The newest record is left for the next call while it is younger than a millisecond: the other core's stores may be on their way.
        """
        written: int = layout.LIVE.unpack_from(self._map, layout.LIVE_OFFSET)[0]
        if self._next is None:
            self._next = self._oldest(written)
        elif self._next < (oldest := self._oldest(written)):
            self._skip_to(oldest, now_ns)
        first = self._next
        upto = min(written + _AHEAD, first + self._capacity - 1)
        if upto <= first:
            return None
        data = self._copy(first, upto)
        words = memoryview(data).cast("q")
        sequences = words[0::_WORDS].tolist()
        whole = _whole(sequences, memoryview(data).cast("I")[2 * _WORDS - 1 :: 2 * _WORDS].tolist(), first)
        if whole and whole < upto - first and words[_WORDS * (whole - 1) + 2] > now_ns - _FRESH_NS:
            whole -= 1
        if not whole:
            newer = sequences[0]
            if newer > first and not (newer - first) % self._capacity:  # the writer came round while we looked
                self._skip_to(self._oldest(newer), now_ns)
            return None
        self._next = first + whole
        lost, self._unsaid = self._unsaid, 0
        return self._spans(rank, data[: whole * layout.RECORD.size], first, lost)

    def _spans(self, rank: RankKey, data: bytes, first: int, lost: int) -> ProbeSpans:
        # The record's layout as strides over words of 8, 4, 2 and 1 bytes: three times as fast as unpacking row by row.
        view, size = memoryview(data), layout.RECORD.size
        long, word, half = view.cast("q"), view.cast("I"), view.cast("H")
        slots: int = layout.FIXED.unpack_from(self._map)[13]
        gpu_error: int = layout.LIVE.unpack_from(self._map, layout.LIVE_OFFSET)[5]
        return ProbeSpans(
            rank=rank,
            tid=layout.FIXED.unpack_from(self._map)[6],
            sequence=first,
            lost=lost,
            kinds=data[36::size],
            starts_ns=long[1::_WORDS].tolist(),
            ends_ns=long[2::_WORDS].tolist(),
            depths=data[37::size],
            micro_batches=view.cast("h")[17 :: size // 2].tolist(),
            modes=data[38::size],
            batch_sizes=half[16 :: size // 2].tolist(),
            tokens=word[7 :: size // 4].tolist(),
            graphs=data[39::size],
            turns=word[6 :: size // 4].tolist(),
            slots=slots if slots > 0 else None,
            gpu_error_ns=gpu_error if gpu_error >= 0 else None,
        )


def _whole(sequences: list[int], tails: list[int], first: int) -> int:
    """How many records from the first on are the expected ones, with both ends of each the same."""
    wanted = list(range(first, first + len(sequences)))
    ends = wanted if first + len(sequences) <= 1 << 32 else [number & 0xFFFFFFFF for number in wanted]
    if sequences == wanted and tails == ends:
        return len(wanted)
    pairs = zip(sequences, tails, wanted, ends, strict=True)
    return next(
        (i for i, (number, tail, right, end) in enumerate(pairs) if number != right or tail != end), len(wanted)
    )
