"""Framing: any cut, any damage, any order of reading and writing."""

from __future__ import annotations

import json
import os
import threading
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.collect.stream import MAGIC, FrameReader, FrameWriter, StreamError, encode, records_of
from ppscope.records import (
    AnyRecord,
    Dropped,
    End,
    Hello,
    Note,
    RankExit,
    RankKey,
    Rules,
    ServerGone,
    Settings,
    SourceStatus,
    StackDef,
    StackSpans,
)

SAMPLE: list[AnyRecord] = [
    Hello(1, "0.1.0", "box", 5, 6, 7),
    Note(1, "info", "é\x00"),
    StackSpans(RankKey(0, 3, 0), 11, "MainThread", 0, 10, 2, [0, 4], [4, 9], [1, 2]),
    End(9, "quit"),
]


def reader() -> FrameReader[AnyRecord]:
    return FrameReader(AnyRecord)


@given(st.lists(st.integers(1, 64), min_size=1))
def test_records_survive_any_cutting_into_pieces(cuts: list[int]) -> None:
    data = MAGIC + b"".join(map(encode, SAMPLE))
    got: list[AnyRecord] = []
    stream, position = reader(), 0
    for size in cuts * (len(data) // sum(cuts) + 1):
        got.extend(stream.feed(data[position : position + size]))
        position += size
    assert got == SAMPLE
    assert (stream.skipped, stream.pending_bytes) == (0, 0)


@given(st.data())
def test_a_cut_stream_gives_every_whole_record(data: st.DataObject) -> None:
    frames = [encode(record) for record in SAMPLE]
    cut = data.draw(st.integers(0, sum(map(len, frames))))
    whole, room = 0, cut
    for frame in frames:
        room -= len(frame)
        whole += room >= 0
    records, _ = records_of(MAGIC + b"".join(frames)[:cut])
    assert records == SAMPLE[: max(whole, 0)][: len(records)]
    assert len(records) == sum(1 for i in range(len(frames)) if sum(map(len, frames[: i + 1])) <= cut)


@given(st.binary(max_size=400))
def test_foreign_bytes_are_refused_or_skipped_never_crash(data: bytes) -> None:
    for prefix in (b"", MAGIC):
        stream = reader()
        try:
            list(stream.feed(prefix + data))
        except StreamError:
            continue
        assert stream.pending_bytes <= len(prefix + data)


def test_a_record_of_the_future_is_skipped_and_appended_fields_are_ignored() -> None:
    class Tomorrow(msgspec.Struct, frozen=True, array_like=True, tag="tomorrow"):
        x: int

    note = msgspec.msgpack.encode(["note", 1, "info", "text", "a field of tomorrow"])
    framed = len(note).to_bytes(4, "little") + note
    body = msgspec.msgpack.encode(Tomorrow(1))
    stream = reader()
    got = list(stream.feed(MAGIC + len(body).to_bytes(4, "little") + body + framed))
    assert got == [Note(1, "info", "text")]
    assert stream.skipped == 1


def test_a_reader_that_stops_reading_costs_bulk_but_nothing_that_is_said_once() -> None:
    read_fd, write_fd = os.pipe()
    writer = FrameWriter(write_fd, limit_bytes=200_000)
    bulk = StackSpans(RankKey(0, 0, 0), 1, "MainThread", 0, 1, 1, list(range(2000)), list(range(2000)), [1] * 2000)
    started = time.monotonic()
    for i in range(200):
        writer.put(bulk)
        writer.put(StackDef(i, (1, 2, 3)))
    once: list[AnyRecord] = [
        SourceStatus("http", 1, "degraded", "it hangs"),
        RankExit(RankKey(0, 1, 0), 7, 1, "gone"),
        ServerGone(1, 5, ((9, "m"),)),
    ]
    for record in once:
        writer.put(record)
    assert time.monotonic() - started < 5  # it would block for ever if it blocked at all
    got: list[AnyRecord] = []
    stream = reader()

    def read() -> None:
        while data := os.read(read_fd, 65536):
            got.extend(stream.feed(data))

    thread = threading.Thread(target=read)
    thread.start()
    deadline = time.monotonic() + 10
    notes = 0
    while not any(isinstance(record, Dropped) for record in got) and time.monotonic() < deadline:
        writer.put(Note(1, "info", "still here"))
        notes += 1
        time.sleep(0.01)
    writer.close()
    os.close(write_fd)
    thread.join()
    os.close(read_fd)
    assert [record.id for record in got if isinstance(record, StackDef)] == list(range(200))
    assert [record for record in got if isinstance(record, SourceStatus | RankExit | ServerGone)] == once
    dropped = sum(record.records for record in got if isinstance(record, Dropped))
    assert dropped == 200 + notes - sum(isinstance(record, StackSpans | Note) for record in got) > 0


def test_a_reader_that_is_gone_is_noticed() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    writer = FrameWriter(write_fd)
    writer.put(Note(1, "info", "nobody"))
    assert writer.broken.wait(5)
    os.close(write_fd)


def test_an_impossible_length_is_refused() -> None:
    with pytest.raises(StreamError, match="not a ppscope stream"):
        list(reader().feed(MAGIC + b"\xff\xff\xff\xff"))


def test_text_that_is_no_unicode_is_sent_all_the_same() -> None:
    """JSON may hold half a surrogate pair, and so may a server's answer or a probe's error."""
    half = json.loads('"a\\ud800b"')
    records: list[AnyRecord] = [
        Settings(1, "resolved", {half: [half, {half: 5}], "n": 7}),
        SourceStatus("probe", 1, "degraded", half),
        Rules(1, half, "/p", b"\xff\xfe", ""),
    ]
    back, reader = records_of(MAGIC + b"".join(map(encode, records)))
    assert reader.skipped == 0
    assert back[0] == Settings(1, "resolved", {"a?b": ["a?b", {"a?b": 5}], "n": 7})
    assert back[1] == SourceStatus("probe", 1, "degraded", "a?b")
    assert back[2] == Rules(1, "a?b", "/p", b"\xff\xfe", "")
