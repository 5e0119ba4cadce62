"""Parsing of /proc stat lines: hostile names, short lines, other kernels."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.sources.proc_stat import (
    PAGE_BYTES,
    TICK_NS,
    Stat,
    cpu_seconds,
    parse_schedstat,
    parse_stat,
    parse_thread,
    read_stat,
)

TAIL = (
    "1 2 3 4 -1 4194304 10 11 12 13 500 250 7 8 20 0 41 0 110281 16961536 3303 18446744073709551615 "
    "1 2 3 0 0 0 0 4096 2 0 0 0 17 5 0 0 0 0 0 1 2 3 4 5 6 7 0"
)
"""Fields 4 to 52."""


def line(name: bytes = b"python3", state: str = "S", tail: str = TAIL) -> bytes:
    return b"77 (" + name + b") " + f"{state} {tail}\n".encode()


@pytest.mark.parametrize("name", [b"python3", b"a) R 1 1", b"((", b"", b"sglang::sched) S", b"\xff\xfe \n"])
def test_the_name_may_be_anything(name: bytes) -> None:
    assert parse_stat(line(name)) == Stat("S", 750 * TICK_NS, 41, 110281, 3303 * PAGE_BYTES)
    assert parse_thread(line(name, "R")) == ("R", 5)


def test_another_number_of_fields_gives_no_processor() -> None:
    assert parse_thread(line(tail=TAIL + " 1")) == ("S", None)
    assert parse_thread(line(tail=TAIL.rpartition(" ")[0])) == ("S", None)


@pytest.mark.parametrize(
    "bad", [b"", b"77", b"77 (x", b"77 (x) ", b"77 (x) S", b"77 (x) S a b c d e f g h i j k l m n o p q r s t"]
)
def test_a_line_that_is_none_is_none(bad: bytes) -> None:
    assert parse_stat(bad) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"12 34 5\n", (12, 34)),
        (b"0 0 0\n", None),
        (b"", None),
        (b"1 2\n", None),
        (b"a b c\n", None),
        (b"0 7 1", (0, 7)),
    ],
)
def test_schedstat(text: bytes, expected: tuple[int, int] | None) -> None:
    assert parse_schedstat(text) == expected


@given(
    st.binary(max_size=300) | st.binary(max_size=40).map(line) | st.text(max_size=80).map(lambda tail: line(tail=tail))
)
def test_no_line_crashes(data: bytes) -> None:
    parse_stat(data)
    parse_thread(data)
    parse_schedstat(data)


def test_a_real_line_of_this_kernel_is_understood() -> None:
    stat = read_stat(os.getpid())
    assert stat is not None
    assert stat.state == "R"
    assert stat.threads >= 1
    thread = parse_thread(Path(f"/proc/self/task/{os.getpid()}/stat").read_bytes())
    assert thread is not None
    assert thread[1] in range(os.cpu_count() or 1)
    used_s = cpu_seconds(os.getpid())
    assert used_s is not None
    assert used_s <= sum(os.times()[:2]) + 0.02
    assert read_stat(2**22 + 1) is None
    assert cpu_seconds(2**22 + 1) is None
