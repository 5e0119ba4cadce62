"""Recordings and snapshots read back as the records they were made from."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ppscope.collect.stream import MAGIC, FrameReader, StreamError
from ppscope.records import SCHEMA, AnyRecord, Hello, Server
from ppscope.snapshot import page_data
from ppscope.snapshot.pack import UnreadableDocument, records_of
from ppscope.snapshot.sound import is_sound

_MAX_BYTES = 2 * 1024 * 1024 * 1024


class UnreadableFile(ValueError):
    """A file that is no recording or snapshot this version reads; the message is one line."""


class Opened(msgspec.Struct, frozen=True):
    """The records of a file, and what the reader must know about them: where it was cut or damaged, empty when it is whole."""

    path: Path
    records: list[AnyRecord]
    document: dict[str, object] | None
    """The embedded data of a snapshot; None for a recording."""
    damage: str = ""


def read_file(path: Path) -> Opened:
    """Read a snapshot or a recording. Raises UnreadableFile."""
    try:
        if not path.exists():
            raise UnreadableFile(f"no such file: {path}")
        if not path.is_file():
            # A pipe would wait for a writer, a device may never end.
            raise UnreadableFile(f"{path} is a folder" if path.is_dir() else f"{path} is not a regular file")
        if path.stat().st_size > _MAX_BYTES:
            raise UnreadableFile(f"{path} is larger than {_MAX_BYTES >> 30} GiB; rotation keeps recordings smaller")
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableFile(f"{path}: {error.strerror or error}") from None
    if not data:
        raise UnreadableFile(f"{path} is empty")
    if data[: len(MAGIC)] == MAGIC[: len(data)] and data[:1] == MAGIC[:1]:
        return _recording(path, data)
    if page_data.MARK in data[: page_data.MARK_WITHIN]:
        return _snapshot(path, data)
    raise UnreadableFile(f"{path} is neither a ppscope recording nor a ppscope snapshot")


def _recording(path: Path, data: bytes) -> Opened:
    reader: FrameReader[AnyRecord] = FrameReader(AnyRecord)
    records: list[AnyRecord] = []
    damage = ""
    try:
        for record in reader.feed(data):
            if is_sound(record):
                records.append(record)
    except StreamError:
        damage = f"damaged after {len(records)} records; what came before is shown"
    if not damage and reader.pending_bytes:
        damage = f"cut in the middle of a record: its last {reader.pending_bytes} bytes are left out"
    _check_schema(path, records)
    if not any(isinstance(record, Server) for record in records):
        raise UnreadableFile(f"{path} is cut before it says what server it shows")
    return Opened(path, records, None, damage)


def _check_schema(path: Path, records: list[AnyRecord]) -> None:
    hello = next((record for record in records if isinstance(record, Hello)), None)
    if hello is not None and hello.schema != SCHEMA:
        age = "newer" if hello.schema > SCHEMA else "older"
        raise UnreadableFile(
            f"{path} was written by ppscope {hello.ppscope_version}, whose records are {age} than this one reads"
        )


def _snapshot(path: Path, data: bytes) -> Opened:
    try:
        document = page_data.extract(data)
        records = [record for record in records_of(document) if is_sound(record)]
    except (page_data.NoData, UnreadableDocument) as error:
        raise UnreadableFile(f"{path} {error}") from None
    _check_schema(path, records)
    if not any(isinstance(record, Server) for record in records):
        raise UnreadableFile(f"{path} says nothing of a server")
    return Opened(path, records, document)
