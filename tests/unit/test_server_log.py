"""Following a log file: history, growth, floods, truncation, deletion, and logs that are no files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppscope.sources.server_follow import utc_offset_ns
from ppscope.sources.server_log import HEAD_BYTES, TAIL_BYTES, TICK_BYTES, LogError, LogTail, candidates

LINE = b"[2026-01-29 13:12:36 PP0] Decode batch, #running-req: %d, #queue-req: 0\n"
OTHER = b"[2026-01-29 13:12:36] INFO: 127.0.0.1 - GET /model_info 200 OK\n"


def line(number: int) -> bytes:
    return LINE % number


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "server.log"
    path.write_bytes(b"")
    folder = tmp_path / "1" / "fd"
    folder.mkdir(parents=True)
    (folder / "2").symlink_to(path)
    return path


@pytest.fixture
def tail(log: Path) -> Iterator[LogTail]:
    opened = LogTail.open(1, str(log.parent / "{pid}" / "fd"))
    yield opened
    opened.close()


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_lines_are_given_once_they_are_whole(log: Path, tail: LogTail) -> None:
    append(log, OTHER + line(1) + line(2)[:30])
    assert tail.start().lines == (line(1).strip(),)
    append(log, line(2)[30:] + OTHER)
    assert tail.poll().lines == (line(2).strip(),)
    assert tail.poll().lines == ()


def test_history_is_the_end_of_the_file_and_the_head_what_lies_before(log: Path, tail: LogTail) -> None:
    append(log, line(1) + OTHER * 20_000 + line(2))
    assert log.stat().st_size > 4 * TAIL_BYTES
    assert list(tail.head()) == [line(1).strip()]
    assert tail.start().lines == (line(2).strip(),)


def test_of_a_small_file_nothing_comes_twice(log: Path, tail: LogTail) -> None:
    append(log, line(1) + OTHER * 10 + line(2))
    assert [*tail.head(), *tail.start().lines] == [line(1).strip(), line(2).strip()]


def test_the_head_is_read_no_further_than_its_limit(log: Path, tail: LogTail) -> None:
    append(log, line(1))
    with log.open("r+b") as file:
        file.truncate(HEAD_BYTES * 20)
    append(log, b"\n" + line(2))
    assert list(tail.head()) == [line(1).strip()]
    assert tail.start().lines == (line(2).strip(),)


def test_a_flood_is_passed_over_and_said(log: Path, tail: LogTail) -> None:
    tail.start()
    flood = OTHER * (3 * TICK_BYTES // len(OTHER))
    append(log, line(1) + flood + line(2))
    tick = tail.poll()
    assert tick.lines == (line(2).strip(),)
    assert tick.skipped_bytes == len(line(1) + flood + line(2)) - TICK_BYTES
    assert tail.poll().skipped_bytes == 0


def test_a_line_without_an_end_does_not_pile_up(log: Path, tail: LogTail) -> None:
    tail.start()
    for _ in range(5):
        append(log, b"Decode batch " + b"x" * 100_000)
        assert tail.poll().lines == ()
        assert len(tail._partial) <= 4096
    append(log, b"\n" + line(3))
    assert tail.poll().lines == (line(3).strip(),)


def test_a_truncated_file_is_read_from_its_new_beginning(log: Path, tail: LogTail) -> None:
    append(log, line(1) * 10)
    tail.start()
    log.write_bytes(line(2))
    tick = tail.poll()
    assert (tick.restarted, tick.lines) == (True, (line(2).strip(),))


def test_another_file_behind_the_descriptor_is_noticed(log: Path, tail: LogTail) -> None:
    assert not tail.moved()
    link = log.parent / "1" / "fd" / "2"
    link.unlink()
    assert not tail.moved()
    (log.parent / "other").touch()
    link.symlink_to(log.parent / "other")
    assert tail.moved()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([OTHER, line(1), line(2), b"\n", b"graph\r\n"]), max_size=12),
    st.lists(st.integers(0, 900), max_size=6),
)
def test_growth_in_any_pieces_gives_the_same_lines(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    fd = os.memfd_create("log")
    try:
        tail = LogTail(os.dup(fd), "/dev/null")
        got: list[bytes] = []
        edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
        for start, end in pairwise(edges):
            os.write(fd, data[start:end])
            got += tail.poll().lines
        tail.close()
    finally:
        os.close(fd)
    assert got == list(candidates(data))


def test_the_log_of_a_process_is_found_even_when_deleted(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    with path.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=file, stderr=file)
    try:
        append(path, line(4))
        path.unlink()
        tail = LogTail.open(process.pid)
        assert tail.start().lines == (line(4).strip(),)
        tail.close()
    finally:
        process.communicate(b"\n")


@pytest.mark.parametrize(("kind", "said"), [("fifo", "a pipe"), ("null", "/dev/null"), ("gone", "closed")])
def test_what_is_no_file_is_left_alone(tmp_path: Path, kind: str, said: str) -> None:
    folder = tmp_path / "1" / "fd"
    folder.mkdir(parents=True)
    if kind == "fifo":
        os.mkfifo(tmp_path / "fifo")
        (folder / "2").symlink_to(tmp_path / "fifo")
    elif kind == "null":
        (folder / "2").symlink_to("/dev/null")
    with pytest.raises(LogError, match=said) as error:
        LogTail.open(1, str(tmp_path / "{pid}" / "fd"))
    assert error.value.usual


def test_stdout_is_followed_where_only_it_is_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "1" / "fd"
    folder.mkdir(parents=True)
    (folder / "2").symlink_to("/dev/null")
    (folder / "1").symlink_to(tmp_path / "out")
    (tmp_path / "out").write_bytes(line(1))
    tail = LogTail.open(1, str(tmp_path / "{pid}" / "fd"))
    assert tail.start().lines == (line(1).strip(),)
    tail.close()


@pytest.mark.parametrize("hours", [0, -8, 5.5, 14])
def test_the_server_s_time_zone_is_seen_from_its_last_line(hours: float) -> None:
    written_ns = 1_769_692_356_000_000_000  # 2026-01-29 13:12:36 UTC
    assert (
        utc_offset_ns([b"no stamp", line(1)], written_ns - int(hours * 3600) * 1_000_000_000 + 400_000_000)
        == hours * 3600 * 10**9
    )
    assert utc_offset_ns([b"no stamp"], written_ns) is None
    assert utc_offset_ns([line(1)], written_ns + 90 * 3600 * 10**9) is None
