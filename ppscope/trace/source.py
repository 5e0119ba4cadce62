"""The bytes of a trace file: plain or gzip, in pieces, with what was wrong with them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from isal import isal_zlib

PIECE_BYTES = 1 << 20
_READ_BYTES = 1 << 18
# A call that meets damage hands out nothing, so the piece before the damage is taken again in small steps.
_SALVAGE_BYTES = 4096
_GZIP_WINDOW_BITS = 31
# The stubs of isal declare the class as an instance.
_ISAL_ERROR = cast("type[Exception]", isal_zlib.error)

Progress = Callable[[int, int], None]


class TraceError(Exception):
    """A file that cannot be read as a torch profiler trace; the text is one line for the user."""


class TraceSource:
    """Streams the JSON text of one file.

    `damage` is None for a whole file, otherwise one line that says where the bytes end. `progress` is
    called with the bytes of the file read so far and its size in bytes.
    """

    def __init__(self, path: str | Path, progress: Progress | None = None) -> None:
        self.path = Path(path)
        self.damage: str | None = None
        self._progress = progress

    def pieces(self) -> Iterator[bytes]:
        """Yields the text in pieces of at most 1 MiB; raises TraceError when the file cannot be opened."""
        try:
            size_bytes = self.path.stat().st_size
            with self.path.open("rb") as file:
                magic = file.read(4)
                file.seek(0)
                raw = self._raw(file.read, size_bytes)
                if magic[:2] == b"\x1f\x8b":
                    yield from self._gunzip(raw)
                elif magic == b"\x28\xb5\x2f\xfd":
                    raise TraceError(f"{self.path}: zstd is not supported; unpack it with `zstd -d` first")
                else:
                    yield from raw
        except OSError as error:
            raise TraceError(f"{self.path}: {error.strerror or error}") from error

    def _raw(self, read: Callable[[int], bytes], size_bytes: int) -> Iterator[bytes]:
        done_bytes = 0
        while data := read(_READ_BYTES):
            done_bytes += len(data)
            if self._progress is not None:
                self._progress(done_bytes, size_bytes)
            yield data

    def _gunzip(self, raw: Iterator[bytes]) -> Iterator[bytes]:
        decoder: Any = isal_zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
        delivered_bytes = 0
        members = 0
        pending = b""
        for data in raw:
            pending += data
            while pending:
                if decoder.eof:
                    # Members may follow one another, and some tools pad the last one with zeros.
                    pending = pending.lstrip(b"\0")
                    if not pending:
                        break
                    if not b"\x1f\x8b".startswith(pending[:2]):
                        self.damage = "bytes that are not gzip follow the last gzip member"
                        return
                    decoder = isal_zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
                try:
                    text = decoder.decompress(pending, PIECE_BYTES)
                except _ISAL_ERROR as error:
                    self.damage = f"the gzip data is damaged ({error})"
                    yield from self._salvage(delivered_bytes)
                    return
                if decoder.eof:
                    members += 1
                    pending = decoder.unused_data
                else:
                    pending = decoder.unconsumed_tail
                if text:
                    delivered_bytes += len(text)
                    yield text
                elif not decoder.eof:
                    break
        while not decoder.eof:
            text = decoder.decompress(b"", PIECE_BYTES)
            if not text:
                break
            yield text
        if not decoder.eof:
            self.damage = "the gzip data ends in the middle"

    def _salvage(self, skip_bytes: int) -> Iterator[bytes]:
        """Reads again with zlib, which hands out every byte before the damage when asked for few at a time."""
        with self.path.open("rb") as file:
            decoder = zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
            pending = b""
            while True:
                if not pending:
                    pending = file.read(_READ_BYTES)
                if decoder.eof:
                    pending = (decoder.unused_data + pending).lstrip(b"\0")
                    decoder = zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
                if not pending:
                    return
                before = decoder.copy()
                try:
                    text = decoder.decompress(pending, min(skip_bytes, PIECE_BYTES) or _SALVAGE_BYTES)
                except zlib.error:
                    yield from _bytewise(before, pending)
                    return
                pending = b"" if decoder.eof else decoder.unconsumed_tail
                if skip_bytes:
                    skip_bytes -= len(text)
                elif text:
                    yield text


def _bytewise(decoder: zlib._Decompress, pending: bytes) -> Iterator[bytes]:
    while True:
        try:
            byte = decoder.decompress(pending, 1)
        except zlib.error:
            return
        if not byte:
            return
        yield byte
        pending = decoder.unconsumed_tail
