"""Which part of a recording a command uses, and how the user says it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.snapshot.stretch import Asked, NotThere, choose, clock, in_words, seconds_of

S = 1_000_000_000
HOUR = (7 * S, 3607 * S)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1:30", 90), ("62:03", 3723), ("1:02:03", 3723), ("-2:00", -120), ("0", 0), ("0.5", 0.5), (" 8 ", 8)],
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "now", "1:", ":5", "1:2:3:4", "1e3", "nan", "--1", "1,5", "9" * 30, "\x1b[2J"])
def test_others_are_told_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time") as told:
        seconds_of(text)
    assert "\n" not in str(told.value)
    assert "\x1b" not in str(told.value)


@given(st.integers(0, 10**6))
def test_what_is_written_is_read(seconds: int) -> None:
    assert seconds_of(clock(seconds)) == seconds


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        (Asked(), (3000, 3600)),
        (Asked(from_s=-120), (3480, 3600)),
        (Asked(from_s=0), (0, 3600)),
        (Asked(until_s=300), (0, 300)),
        (Asked(until_s=1800), (1200, 1800)),
        (Asked(until_s=-60), (2940, 3540)),
        (Asked(100, 200), (100, 200)),
        (Asked(-9999, 99999), (0, 3600)),
    ],
)
def test_an_hour(asked: Asked, chosen: tuple[int, int]) -> None:
    assert choose(HOUR, asked) == (HOUR[0] + chosen[0] * S, HOUR[0] + chosen[1] * S)


def test_a_short_one_is_taken_whole() -> None:
    assert choose((0, 599 * S), Asked()) is None
    assert choose((0, 62 * S), Asked(), 60) is None
    assert choose((0, 90 * S), Asked(), 60) == (30 * S, 90 * S)


@pytest.mark.parametrize(
    "asked", [Asked(from_s=4000), Asked(200, 100), Asked(from_s=-10, until_s=-20), Asked(until_s=0)]
)
def test_what_is_not_there_is_told(asked: Asked) -> None:
    with pytest.raises(NotThere, match="is 60:00 long and has nothing from"):
        choose(HOUR, asked)


@given(
    st.integers(-(2**40), 2**40),
    st.integers(1, 10**14),
    st.none() | st.floats(-1e5, 1e5),
    st.none() | st.floats(-1e5, 1e5),
)
def test_a_stretch_lies_within(begin: int, length: int, from_s: float | None, until_s: float | None) -> None:
    try:
        chosen = choose((begin, begin + length), Asked(from_s, until_s))
    except NotThere:
        return
    if chosen is not None:
        assert begin <= chosen[0] <= chosen[1] <= begin + length
        assert " of " in in_words((begin, begin + length), chosen)
