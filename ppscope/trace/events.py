"""The stream of events in a trace: fast a megabyte at a time, event by event only where the text is damaged.

Layouts seen: Kineto's own, `json.dumps` on one line, indented by 2 or 4, metadata before or after the events, bare arrays, any order of
keys. A chunk is cut where one event ends and the next begins; should a cut be wrong, the chunk does not decode and the scan takes over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from ppscope.trace.repair import decode_damaged
from ppscope.trace.source import PIECE_BYTES, TraceError, TraceSource

T = TypeVar("T")

_EVENTS_KEY = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
_BOUNDARY = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args)"\s*:)')
_ANY_BOUNDARY = re.compile(rb'\}\s*,\s*\{\s*"')
_LAST_BOUNDARY_BYTES = 1 << 16
_LAST_EVENT = re.compile(rb'\}(?=\s*\]\s*(?:,\s*"[^"]*"\s*:|\}\s*$|$))')
# A bracket that neither a top-level key nor the end follows is damage, not the end of the list.
_ENDS = re.compile(rb'\s*(?:$|\}\s*$|,\s*"(?!(?:ph|name|cat|pid|tid|ts|dur|args)")[^"]*"\s*:)')
_NEXT_KEY_BYTES = 4096
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
_FILLER = re.compile(rb"[\s,]*")
_HEAD_LIMIT_BYTES = 64 << 20
_EVENT_LIMIT_BYTES = 16 << 20
# How far the end of an event is looked for when the next boundary is not it: far, until that was in vain too often.
_LOOK_BYTES = 1 << 18
_LITTLE_BYTES = 1 << 12
_PATIENCE_BYTES = 1 << 25


_OPEN = -1
_IN_STRING = -2


def _scan(text: bytes, start: int, end: int) -> int:
    """Finds the offset behind the object at `start`; _OPEN when it is still open at `end`, _IN_STRING when a string is."""
    depth = 0
    for token in _TOKEN.finditer(text, start, end):
        first = text[token.start()]
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
            if depth <= 0:
                return token.end()
        elif token.end() - token.start() == 1:
            return _IN_STRING
    return _OPEN


class EventStream(Generic[T]):
    """Decodes the events of one file as structs of one type.

    `head` and `tail` are the text before and after the events, for the metadata. `dropped_events` counts what could not be decoded,
    `mended_events` what could after mending. `truncated` is True when the text ends before the list of events does.
    """

    def __init__(self, source: TraceSource, kind: type[T]) -> None:
        self.head = b""
        self.tail = b""
        self.dropped_events = 0
        self.mended_events = 0
        self.truncated = False
        self._source = source
        self._kind = kind
        self._list: msgspec.json.Decoder[list[T]] = msgspec.json.Decoder(list[kind], strict=False)  # type: ignore[valid-type]
        self._one: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind, strict=False)
        self._boundaries: list[bytes] = []
        self._bare_array = False
        self._patience_bytes = _PATIENCE_BYTES

    def batches(self) -> Iterator[list[T]]:
        """Yields the events in file order; raises TraceError when the file holds no list of events."""
        pieces = self._source.pieces()
        pending = self._read_head(pieces)
        if not self._learn_boundary(pending):
            more = next(pieces, b"")
            pending += more
            self._learn_boundary(pending)
        parts = [pending]
        size = len(pending)
        for piece in pieces:
            parts.append(piece)
            size += len(piece)
            if size < PIECE_BYTES:
                continue
            text = b"".join(parts)
            events, rest = self._take(text)
            if events:
                yield events
            if rest is None:
                self._keep_tail(pieces)
                return
            parts = [rest]
            size = len(rest) if len(rest) < PIECE_BYTES else 0
        events, rest = self._scan_events(b"".join(parts), last=True)
        if events:
            yield events
        # Chrome's array format may leave out the closing bracket; then the end of a bare array proves nothing.
        self.truncated = rest is not None and not (self._bare_array and not rest.strip(b" \t\r\n,"))

    def _keep_tail(self, pieces: Iterator[bytes]) -> None:
        parts = [self.tail]
        kept = len(self.tail)
        for piece in pieces:
            if kept < _EVENT_LIMIT_BYTES:
                parts.append(piece)
                kept += len(piece)
        self.tail = b"".join(parts)

    def _read_head(self, pieces: Iterator[bytes]) -> bytes:
        text = b""
        searched = 0
        for piece in pieces:
            text += piece
            start = text.removeprefix(b"\xef\xbb\xbf").lstrip()
            if start[:1] == b"[":
                self._bare_array = True
                return start[1:]
            if start and start[:1] != b"{":
                break
            match = _EVENTS_KEY.search(text, searched)
            if match:
                self.head = text[: match.start()]
                return text[match.end() :]
            if len(text) > _HEAD_LIMIT_BYTES:
                break
            searched = max(len(text) - 256, 0)
        raise TraceError(f"{self._source.path}: not a torch profiler trace (no list of traceEvents in it)")

    def _learn_boundary(self, text: bytes) -> bool:
        """Takes the white space between the first two events as the mark between all events; True when it was found."""
        start = text.find(b"{")
        if start < 0:
            return False
        end = _scan(text, start, len(text))
        match = _ANY_BOUNDARY.match(text, end - 1) if end > 0 else None
        if match is None:
            return False
        # Metadata events start with "name", and lists of objects inside an event look alike on one line: prefer "ph".
        self._boundaries = [match.group(0) + b'ph"', match.group(0)]
        return True

    def _cut(self, text: bytes) -> int:
        """Offset behind the last event that is surely whole, 0 when none is."""
        for boundary in self._boundaries:
            at = text.rfind(boundary)
            if at >= 0:
                return at + 1
        last = 0
        for match in _BOUNDARY.finditer(text, max(len(text) - _LAST_BOUNDARY_BYTES, 0)):
            last = match.start() + 1
        return last

    def _take(self, text: bytes) -> tuple[list[T], bytes | None]:
        cut = self._cut(text)
        if cut:
            start = _FILLER.match(text).end()  # type: ignore[union-attr]
            try:
                return self._list.decode(b"[%b]" % text[start:cut]), text[cut:]
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass
        return self._scan_events(text, last=False)

    def _scan_events(self, text: bytes, last: bool) -> tuple[list[T], bytes | None]:
        """Decodes event by event; returns them and the rest of the text, None for the rest once the list is closed."""
        events: list[T] = []
        at = 0
        while True:
            at = _FILLER.match(text, at).end()  # type: ignore[union-attr]
            if at >= len(text):
                return events, b""
            if text[at] == 0x5D:  # ]
                if not last and len(text) - at < _NEXT_KEY_BYTES:
                    return events, text[at:]
                if _ENDS.match(text, at + 1):
                    self.tail = text[at + 1 :]
                    return events, None
            boundary = _BOUNDARY.search(text, at)
            if text[at] != 0x7B:  # {
                self.dropped_events += 1
                at = self._resume(text, at, boundary)
                if at < 0:
                    return events, b""
                continue
            if boundary is None:
                if not last and len(text) - at < _EVENT_LIMIT_BYTES:
                    return events, text[at:]
                if (at := self._last_event(text, at, events)) < 0:
                    return events, b"{"
                continue
            step = self._event(text, at, boundary, events, last)
            if step < 0:
                return events, text[at:]
            at = step

    @staticmethod
    def _resume(text: bytes, at: int, boundary: re.Match[bytes] | None) -> int:
        brace = text.find(b"{", at)
        bracket = text.find(b"]", at + 1)
        found = [place for place in (brace, bracket, boundary.end() if boundary else -1) if place >= 0]
        return min(found) if found else -1

    def _event(self, text: bytes, at: int, boundary: re.Match[bytes], events: list[T], last: bool) -> int:
        """Decodes the event at `at`; returns the offset behind it, or -1 when more text is needed to tell where it ends."""
        end = boundary.start() + 1
        if self._decode(text[at:end], events):
            return end
        # The boundary may be one of a list of objects inside the event, or lie behind the end of the list.
        bound = min(len(text), at + max(min(self._patience_bytes, _LOOK_BYTES), _LITTLE_BYTES))
        closed = _scan(text, at, bound)
        if closed == _OPEN and bound == len(text) and not last and bound - at < _LOOK_BYTES:
            return -1
        if closed > 0 and closed != end and self._decode(text[at:closed], events):
            return closed
        self._patience_bytes -= (closed if closed > 0 else bound) - at
        self._mend(text[at:end], events)
        return end

    def _last_event(self, text: bytes, at: int, events: list[T]) -> int:
        """Decodes the last event, behind which the list or the file ends; -1 when the file ends first."""
        end = _scan(text, at, len(text))
        if end > 0 and self._decode(text[at:end], events):
            return end
        close = _LAST_EVENT.search(text, at)
        if close is not None and (end < 0 or close.end() < end):
            end = close.end()
        elif end < 0:
            self.dropped_events += 1
            return -1
        self._mend(text[at:end], events)
        return end

    def _decode(self, text: bytes, events: list[T]) -> bool:
        try:
            events.append(self._one.decode(text))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        return True

    def _mend(self, text: bytes, events: list[T]) -> None:
        event = decode_damaged(text, self._kind)
        if event is None:
            self.dropped_events += 1
        else:
            self.mended_events += 1
            events.append(event)
