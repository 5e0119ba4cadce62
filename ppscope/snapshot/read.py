"""Recordings and snapshots read back as the records they were made from."""

from __future__ import annotations

import stat
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from ppscope.collect.stream import MAGIC, FrameReader, StreamError
from ppscope.garbage import no_collection
from ppscope.records import SCHEMA, AnyRecord, Hello, Server
from ppscope.snapshot import page_data
from ppscope.snapshot.files import named, other_owner
from ppscope.snapshot.handles import Handles
from ppscope.snapshot.index import Index
from ppscope.snapshot.pack import UnreadableDocument, records_of
from ppscope.snapshot.recorder import named_parts, part_paths
from ppscope.snapshot.sound import is_sound

_MAX_PAGE_BYTES = 2 * 1024 * 1024 * 1024
_READ_BYTES = 256 * 1024
_CHUNK_BYTES = 64 * 1024
_LATE_NS = 60_000_000_000
"""`record` gives up on a server that is not found within 20 s, and figures of its own cost come every second from then on."""


class UnreadableFile(ValueError):
    """A file that is no recording or snapshot this version reads; the message is one line."""


class Opened(msgspec.Struct, frozen=True):
    """What is in a file, and what the reader must know about it: what of it is cut, damaged or missing, empty when it is whole."""

    path: Path
    index: Index
    document: dict[str, object] | None
    """The embedded data of a snapshot; None for a recording."""
    damage: str = ""

    @property
    def records(self) -> list[AnyRecord]:
        """All of it, in memory."""
        return list(self.index.records())


def read_file(path: Path) -> Opened:
    """Read a snapshot, or index a recording with the closed parts beside it. Raises UnreadableFile."""
    try:
        kind = path.stat().st_mode
        if not stat.S_ISREG(kind):
            # A pipe would wait for a writer, a device may never end.
            raise UnreadableFile(
                f"{named(path)} is a folder" if stat.S_ISDIR(kind) else f"{named(path)} is not a regular file"
            )
        with path.open("rb") as file:
            head = file.read(page_data.MARK_WITHIN)
        if not head:
            return _parts_alone(path, "empty", f"{named(path)} is empty")
        if head[: len(MAGIC)] == MAGIC[: len(head)]:
            return _recording(path)
        if page_data.MARK in head:
            if path.stat().st_size > _MAX_PAGE_BYTES:
                raise UnreadableFile(f"{named(path)} is larger than {_MAX_PAGE_BYTES >> 30} GiB")
            return _snapshot(path, path.read_bytes())
    except FileNotFoundError:
        return _parts_alone(path, "missing", f"no such file: {named(path)}")
    except OSError as error:
        owner = other_owner(path) if isinstance(error, PermissionError) else None
        whose = "" if owner is None else f", it belongs to user {owner}"
        raise UnreadableFile(f"{named(path)}: {error.strerror or error}{whose}") from None
    raise UnreadableFile(f"{named(path)} is neither a ppscope recording nor a ppscope snapshot")


def _recording(path: Path, files: Sequence[Path] = ()) -> Opened:
    """A recording with the closed parts beside it, or of `files` alone."""
    index = Index()
    handles = Handles()
    weakref.finalize(index, handles.close)
    damages = []
    try:
        files = files or [*_together(path, _first(path)), path]
    except OSError as error:
        files = [path]
        damages.append(f"shown alone: {error.strerror}")
    for file in files:
        said = _add(index, handles, file)
        if said:
            damages.append(said if file is path else f"{named(Path(file.name))}: {said}")
    _check_schema(path, index.hello)
    if not index.servers:
        raise UnreadableFile(f"{named(path)} is cut before it says what server it shows")
    if len(files) == 1 and index.late_ns >= _LATE_NS:
        minutes = index.late_ns // 60_000_000_000
        damages.insert(0, f"a later part of a recording; the {minutes} min before it are not in this file")
    return Opened(path, index, None, "; ".join(damages))


def _parts_alone(path: Path, state: str, otherwise: str) -> Opened:
    """The closed parts of the newest recording under a name that is itself `state`. Raises UnreadableFile where there are none."""
    try:
        begins = (_first(part) for part in reversed(part_paths(path)))
        parts = _together(path, next((begin for begin in begins if begin is not None), None))
        if parts:
            opened = _recording(parts[-1], parts)
            said = f"{state}; what its parts {named_parts(parts)} hold is shown"
            return Opened(path, opened.index, None, "; ".join(filter(None, (said, opened.damage))))
    except OSError:
        pass
    raise UnreadableFile(otherwise) from None


def _together(path: Path, first: AnyRecord | None) -> list[Path]:
    """The closed parts of one recording: their streams began with the same words."""
    return [part for part in part_paths(path) if first is not None and _first(part) == first]


def _first(path: Path) -> AnyRecord | None:
    reader: FrameReader[AnyRecord] = FrameReader(AnyRecord)
    try:
        if not path.is_file():
            return None  # a pipe would wait for a writer
        with path.open("rb") as file:
            record = next(reader.feed(file.read(_CHUNK_BYTES)), None)
    except (OSError, StreamError):
        return None
    return record if isinstance(record, Hello) else None


def _add(index: Index, handles: Handles, path: Path) -> str:
    """Take a file into the index; what is wrong with it."""
    reader: FrameReader[AnyRecord] = FrameReader(AnyRecord)
    begin = len(MAGIC)
    end = begin
    damage = ""
    seen = 0
    file = handles.add(path)
    try:
        while data := handles.read(file, _READ_BYTES, seen):
            seen += len(data)
            for record in reader.feed(data):
                end = reader.offset
                if is_sound(record):
                    index.add(record)
                if end - begin >= _CHUNK_BYTES:
                    index.close_chunk(end - begin, partial(_read, handles, file, begin, end))
                    begin = end
    except StreamError:
        damage = f"damaged after {index.records_seen} records; what came before is shown"
    if end > begin:
        index.close_chunk(end - begin, partial(_read, handles, file, begin, end))
    if not damage and reader.pending_bytes:
        damage = f"cut in the middle of a record: its last {reader.pending_bytes} bytes are left out"
    return damage


def _read(handles: Handles, file: tuple[int, int], begin: int, end: int) -> Iterator[AnyRecord]:
    """Records between two offsets; fewer where the file was cut or removed meanwhile."""
    reader: FrameReader[AnyRecord] = FrameReader(AnyRecord, magic=False)
    try:
        for record in reader.feed(handles.read(file, end - begin, begin)):
            if is_sound(record):
                yield record
    except (OSError, StreamError):
        return


def _check_schema(path: Path, hello: Hello | None) -> None:
    if hello is not None and hello.schema != SCHEMA:
        age = "newer" if hello.schema > SCHEMA else "older"
        raise UnreadableFile(
            f"{named(path)} was written by ppscope {hello.ppscope_version}, whose records are {age} than this one reads"
        )


def _snapshot(path: Path, data: bytes) -> Opened:
    try:
        with no_collection():
            document = page_data.extract(data)
            records = [record for record in records_of(document) if is_sound(record)]
    except (page_data.NoData, UnreadableDocument) as error:
        raise UnreadableFile(f"{named(path)} {error}") from None
    _check_schema(path, next((record for record in records if isinstance(record, Hello)), None))
    if not any(isinstance(record, Server) for record in records):
        raise UnreadableFile(f"{named(path)} says nothing of a server")
    return Opened(path, Index.of(records), document)
