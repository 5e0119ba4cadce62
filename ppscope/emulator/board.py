"""Counters that every stage writes and the launcher reads: a small shared file, eight bytes a field, one writer a row."""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

FIELDS = (
    "forward_passes",
    "decode_replayed",
    "decode_eager",
    "prefill_eager",
    "tokens",
    "gen_throughput",
    "running",
    "running_at_next",
    "token_count",
    "gpu_busy_ns",
    "gpu_span_start_ns",
    "gpu_span_end_ns",
    "gpu_duty",
    "fwd_occupancy",
    "decode_tokens",
    "in_flight",
    "queued",
)
_OFFSET = {name: index * 8 for index, name in enumerate(FIELDS)}
_ROW_BYTES = 8 * len(FIELDS)
_DOUBLE = struct.Struct("=d")


def create_board(path: str, ranks: int) -> None:
    """Create the file for `ranks` rows, all zero."""
    Path(path).write_bytes(b"\0" * (_ROW_BYTES * ranks))


class Board:
    """The file, mapped. Rows are numbered `pp_rank * tp_size + tp_rank`."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def get(self, row: int, name: str) -> float:
        """Return a field of a row."""
        return float(_DOUBLE.unpack_from(self._map, row * _ROW_BYTES + _OFFSET[name])[0])

    def set(self, row: int, name: str, value: float) -> None:
        """Set a field of a row."""
        _DOUBLE.pack_into(self._map, row * _ROW_BYTES + _OFFSET[name], value)

    def add(self, row: int, name: str, value: float) -> None:
        """Add to a field of a row; only the row's own process may."""
        self.set(row, name, self.get(row, name) + value)

    def gpu_busy_ns(self, row: int, now_ns: int | None = None) -> float:
        """Return the nanoseconds in which a computing kernel ran until now (CLOCK_MONOTONIC); the last span may lie ahead."""
        now = time.monotonic_ns() if now_ns is None else now_ns
        start, end = self.get(row, "gpu_span_start_ns"), self.get(row, "gpu_span_end_ns")
        ran = min(max(now - start, 0.0), end - start)
        return self.get(row, "gpu_busy_ns") + ran * self.get(row, "gpu_duty")
