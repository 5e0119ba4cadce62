"""The shortened output: the same screen, fewer bytes, and nothing of it left behind in the terminal."""

from __future__ import annotations

import pyte
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ppscope.app_thrift import Thrift

SIZE = (20, 6)
PIECES = (
    "\x1b[0m", "\x1b[m", "\x1b[1m", "\x1b[7m", "\x1b[22m", "\x1b[39m", "\x1b[49m", "\x1b[31m", "\x1b[97;44m",
    "\x1b[38;5;166;48;5;233m", "\x1b[38;5;24;48;5;233m", "\x1b[1;38;2;1;2;3m", "\x1b[0;4;48;2;9;8;7m", "\x1b[107m",
    "\x1b[2;3H", "\x1b[6;1H", "\x1b[3;9H\n\x1b[4;1H", "\x1b[3;20H", "\x1b[?2026h", "\x1b[?2026l", "\x1b[2J", "\x1b[K",
    "\x1b[?25l", "\x1b]2;a title\x07", "\r", "text", "▄▄", " ", "▐wide", "",
)  # fmt: skip


def screen(data: str) -> tuple[list[list[pyte.screens.Char]], pyte.screens.Char]:
    """What a terminal shows, every cell with its style, and the style that the next text would have."""
    terminal = pyte.Screen(*SIZE)
    pyte.Stream(terminal).feed(data)
    cells = [[terminal.buffer[y][x] for x in range(SIZE[0])] for y in range(SIZE[1])]
    return cells, terminal.cursor.attrs


@settings(max_examples=400)
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=12), max_size=6))
@example([["\x1b[1;31m", "a", "\x1b[0m", "b"], ["\x1b[31m", "c\x1b[0m", "\x1b[K"]])
def test_the_screen_is_the_same(writes: list[list[str]]) -> None:
    thrift = Thrift()
    frames = ["".join(pieces) for pieces in writes]
    shortened = "".join(thrift.shorten(frame) for frame in frames)
    assert screen(shortened)[0] == screen("".join(frames))[0]


@given(st.text(max_size=40))
def test_plain_text_and_rubbish_pass_whole(text: str) -> None:
    seen = Thrift().shorten(text)
    assert seen.replace("\x1b[0m", "") == text.replace("\x1b[0m", "") or "\x1b[" in text


@pytest.mark.parametrize(
    ("textual", "ours"),
    [
        (
            "\x1b[38;5;24;48;5;233m░░\x1b[0m\x1b[38;5;166;48;5;233m▄\x1b[0m",
            "\x1b[0;38;5;24;48;5;233m░░\x1b[38;5;166m▄",
        ),
        ("\x1b[9;119H\n\x1b[10;16H\x1b[1;3H", "\x1b[1;3H"),
        ("\x1b[1;31ma\x1b[0m\x1b[31mb\x1b[0mc", "\x1b[0;1;31ma\x1b[0;31mb\x1b[39mc"),
        ("\x1b[31m\x1b[0m", ""),
        ("\x1b[31ma\x1b[0m\x1b[?1049l", "\x1b[0;31ma\x1b[39m\x1b[?1049l"),
    ],
)
def test_how_it_is_shortened(textual: str, ours: str) -> None:
    assert Thrift().shorten(textual) == ours


def test_the_last_style_is_not_left_behind_when_the_screen_is_left() -> None:
    thrift = Thrift()
    left = thrift.shorten("\x1b[1;38;5;166mtext\x1b[0m") + thrift.shorten("\x1b[?1049l\x1b[?25h")
    assert screen(left)[1] == screen("")[1]


def test_after_somebody_else_wrote_the_style_is_said_whole() -> None:
    thrift = Thrift()
    thrift.shorten("\x1b[31ma")
    thrift.shorten("\x1b[?1049h")  # as when a suspended screen comes back
    assert thrift.shorten("\x1b[31mb\x1b[0m") == "\x1b[0;31mb"
