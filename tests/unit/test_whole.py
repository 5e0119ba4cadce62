"""Whole numbers in foreign text: a number or nothing, never an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.snapshot.page_data import _other_schema
from ppscope.target.arguments import parse_arguments
from ppscope.whole import whole

NO_NUMBERS = ("", "-", "+", "--6", "+-6", "6-", "²", "٣", "6 ", "1_000", "0x10", "9" * 5000)


@pytest.mark.parametrize("text", NO_NUMBERS)
@pytest.mark.parametrize("signed", [False, True])
def test_what_is_no_number_is_none(text: str, signed: bool) -> None:
    assert whole(text, signed=signed) is None
    words = ("--pp-size", "4", f"--pp-size={text}", f"--tp-size={text}")
    assert (parse_arguments(words).pp_size, parse_arguments(words).tp_size) == (4, None)
    assert "snapshot" in _other_schema(f"ppscope.snapshot/{text}")


@given(st.one_of(st.text(max_size=12), st.from_regex(r"[+-]{0,2}[0-9²٣]{0,12}", fullmatch=True)), st.booleans())
def test_a_number_is_what_int_reads_and_anything_else_is_none(text: str, signed: bool) -> None:
    number = whole(text, 9, signed=signed)
    if number is not None:
        assert number == int(text)
        assert signed or number >= 0
    elif text.isascii() and text.lstrip("0123456789") == "":
        assert not 1 <= len(text) <= 9
