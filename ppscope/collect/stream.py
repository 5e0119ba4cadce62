"""Framing of the stream, both directions: a magic, then frames of a little-endian u32 length and a msgpack record.

The same bytes make a recording (`.pps`). A reader skips what it does not know, so that old and new talk.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from ppscope.records import (
    AnyCommand,
    AnyRecord,
    BurstRank,
    BurstReport,
    BurstStatus,
    Dropped,
    End,
    FrameDef,
    GpuDevice,
    Hello,
    RankExit,
    Rules,
    Server,
    ServerGone,
    Settings,
    SourceStatus,
    StackDef,
)
from ppscope.unicode import as_unicode

MAGIC = b"PPSCOPE\x01"
MAX_FRAME_BYTES = 64 * 1024 * 1024
_LENGTH = struct.Struct("<I")
_KEEP = (
    *(Hello, Server, FrameDef, StackDef, GpuDevice, Settings, Rules, BurstStatus, BurstRank, BurstReport, End),
    *(ServerGone, RankExit, SourceStatus),
)
"""Records that later ones refer to, or that are said once: kept when bulk is dropped, up to eight times the soft limit."""

T = TypeVar("T")


class StreamError(ValueError):
    """The bytes are not a ppscope stream, or not one this version reads."""


def encode(record: AnyRecord | AnyCommand) -> bytes:
    """One frame: length and msgpack body. Text that is no Unicode, half a surrogate pair out of JSON, is sent with `?` in its place."""
    try:
        body = msgspec.msgpack.encode(record)
    except UnicodeEncodeError:
        body = msgspec.msgpack.encode(as_unicode(msgspec.to_builtins(record, builtin_types=(bytes,))))
    return _LENGTH.pack(len(body)) + body


class FrameReader(Generic[T]):
    """Turns bytes, in pieces of any size, into records.

    `skipped` counts frames with an unknown tag or a damaged body. A wrong magic or an impossible length raises StreamError.
    """

    def __init__(self, kind: type[T] | object, *, magic: bool = True) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()
        self._magic = magic
        self.skipped = 0
        self.offset = 0
        """Bytes up to the end of the frame that was read last."""

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that has not come whole yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[T]:
        """Records completed by these bytes."""
        self._buffer += data
        if self._magic:
            head = bytes(self._buffer[: len(MAGIC)])
            if head != MAGIC[: len(head)]:
                raise StreamError("not a ppscope stream")
            if len(head) < len(MAGIC):
                return
            del self._buffer[: len(MAGIC)]
            self._magic = False
            self.offset = len(MAGIC)
        position = 0
        try:
            while len(self._buffer) - position >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._buffer, position)
                if length > MAX_FRAME_BYTES:
                    raise StreamError(f"a frame of {length} bytes: not a ppscope stream, or a damaged one")
                end = position + _LENGTH.size + length
                if len(self._buffer) < end:
                    return
                body = bytes(self._buffer[position + _LENGTH.size : end])
                position = end
                self.offset += _LENGTH.size + length
                try:
                    record = self._decoder.decode(body)
                except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeDecodeError):
                    self.skipped += 1
                    continue
                yield record
        finally:
            del self._buffer[:position]


class FrameWriter:
    """Writes records to a file descriptor from a thread of its own; `put` never blocks.

    While the reader does not read, bulk is dropped beyond `limit_bytes` and told of later in a `Dropped` record.
    """

    def __init__(self, fd: int, *, magic: bool = True, limit_bytes: int = 8 * 1024 * 1024) -> None:
        self._fd = fd
        self._limit = limit_bytes
        self._queue: deque[bytes] = deque([MAGIC] if magic else [])
        self._queued = len(MAGIC) if magic else 0
        self._ready = threading.Condition()
        self._closing = False
        self._dropped = [0, 0]
        self.broken = threading.Event()
        """Set once the reader is gone."""
        self._thread = threading.Thread(target=self._run, name="stream-writer", daemon=True)
        self._thread.start()

    def put(self, record: AnyRecord) -> None:
        """Queue a record; callable from any thread."""
        frame = encode(record)
        with self._ready:
            room = self._limit * 8 if isinstance(record, _KEEP) else self._limit
            if self._queued + len(frame) > room:
                self._dropped[0] += 1
                self._dropped[1] += len(frame)
                return
            if self._dropped[0] and self._queued < self._limit // 2:
                self._append(encode(Dropped(time.monotonic_ns(), *self._dropped)))
                self._dropped = [0, 0]
            self._append(frame)
            self._ready.notify()

    def _append(self, frame: bytes) -> None:
        self._queue.append(frame)
        self._queued += len(frame)

    def close(self, timeout_s: float = 1.0) -> None:
        """Write what is queued, for at most `timeout_s`, then end."""
        with self._ready:
            self._closing = True
            self._ready.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._ready:
                while not self._queue and not self._closing:
                    self._ready.wait()
                if not self._queue:
                    return
                chunk = b"".join(self._queue)
                self._queue.clear()
            try:
                view = memoryview(chunk)
                while view:
                    written = os.write(self._fd, view[:65536])
                    view = view[written:]
                    with self._ready:
                        self._queued -= written
            except OSError:
                self.broken.set()
                return


def records_of(data: bytes) -> tuple[list[AnyRecord], FrameReader[AnyRecord]]:
    """All whole records of a recording held in memory, and the reader that tells what was skipped or cut."""
    reader: FrameReader[AnyRecord] = FrameReader(AnyRecord)
    return list(reader.feed(data)), reader
