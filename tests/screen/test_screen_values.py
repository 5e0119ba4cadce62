"""The pure parts of the screen: text that stays in its cells, the window of time, the cells of a lane, lanes fetched in parts."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from ppscope.app_lanes import Lanes
from ppscope.app_state import State
from ppscope.app_window import ZOOM_NS, Window
from ppscope.keys import KEYS
from ppscope.records import RankKey
from ppscope.views import Cell
from ppscope.widgets.cells import TILE, lane_line, tiles
from ppscope.widgets.chrome import axis
from ppscope.widgets.help import COLOUR_ALONE, MEANING, help_listing
from ppscope.widgets.look import Look
from ppscope.widgets.text import (
    clean,
    crop,
    cut,
    cut_left,
    elapsed,
    left,
    part,
    right,
    spark,
    to_ascii,
    width_of,
    wrapped,
)
from ppscope.words import WORDS
from tests.fake_feed import EAGER, MS, PHASES, REPLAY, SECOND, WAIT_STAGE, FakeFeed

LOOK = Look(colours="full", dark=True, ascii=False, phases=PHASES)
PLAIN = Look(colours="none", dark=True, ascii=True, phases=PHASES)


@given(st.text())
def test_clean_text_cannot_steer_the_terminal(text: str) -> None:
    out = clean(text)
    assert all(char.isprintable() for char in out)
    assert clean(out) == out
    assert to_ascii(out).isascii()
    assert len(to_ascii(out)) == cell_len(out)


@given(st.text(max_size=40), st.integers(1, 30))
def test_padded_text_takes_exactly_its_cells(text: str, width: int) -> None:
    assert cell_len(left(text, width)) == cell_len(right(text, width)) == width
    assert cell_len(cut(text, width)) <= width
    assert cell_len(cut_left(text, width)) <= width
    assert all(cell_len(row) <= width for row in wrapped(text, max(2, width)) if width > 1)


@given(
    st.lists(st.tuples(st.text(max_size=8).map(clean), st.just("")), max_size=5), st.integers(0, 20), st.integers(1, 20)
)
def test_parts_of_a_line_are_as_wide_as_asked(spans: list[tuple[str, str]], start: int, width: int) -> None:
    line = tuple(spans)
    total = width_of(line)
    assert width_of(part(line, start, width)) == max(0, min(total, start + width) - start)
    assert width_of(crop(line, width)) <= width


def test_a_spark_leaves_a_gap_where_nothing_is_known() -> None:
    assert spark((0.0, None, 300.0, 600.0), 600.0, 6) == "  ▁ ▄█"
    assert spark((), None, 3) == "   "


@pytest.mark.parametrize(
    ("ns", "digits", "text"),
    [(0, 0, "0:00"), (61 * SECOND, 0, "1:01"), (59_999 * MS, 1, "1:00.0"), (30_123 * MS, 3, "0:30.123")],
)
def test_time_since_the_attach(ns: int, digits: int, text: str) -> None:
    assert elapsed(ns, digits) == text


def test_the_window_grows_and_jumps_when_it_is_full() -> None:
    window = Window()
    start = 1_000 * SECOND
    window.resize(100, (start, start))
    firsts = set()
    for step in range(0, 400, 5):
        now = start + step * window.column_ns
        window.follow((start, now))
        assert window.now_column(now) is not None
        firsts.add(window.first - start // window.column_ns)
    assert sorted(firsts) == [0, 50, 100, 150, 200, 250, 300]  # half a screen on, seen every fifth column


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(["in", "out", "back", "forth", "oldest", "live", "resize"]), max_size=30),
    st.integers(1, 700),
)
def test_the_window_never_leaves_what_is_kept(steps: list[str], seconds: int) -> None:
    extent = (1_000 * SECOND, (1_000 + seconds) * SECOND)
    window = Window()
    window.resize(104, extent)
    for step in steps:
        if step in {"in", "out"}:
            window.change_zoom(1 if step == "in" else -1, extent)
        elif step in {"back", "forth"}:
            window.pan(-1 if step == "back" else 1, extent)
        elif step == "oldest":
            window.to_oldest(extent)
        elif step == "live":
            window.to_live(extent)
        else:
            window.resize(144 - window.columns, extent)
        window.follow(extent)
        assert window.column_ns in ZOOM_NS
        assert window.first >= extent[0] // window.column_ns
        assert window.start_ns <= extent[1]
        assert not window.live or window.now_column(extent[1]) is not None


def test_lanes_fetched_in_parts_equal_lanes_fetched_whole() -> None:
    feed = FakeFeed(seconds=3, windows=True)
    ranks = [RankKey(0, pp, 0) for pp in range(4)]
    window, lanes = Window(), Lanes()
    window.resize(104, feed.extent())
    for _ in range(60):
        feed.at_ns += 500 * MS
        window.follow(feed.extent())
        lanes.fetch(feed, window, ranks, feed.now_ns(), False)
        whole = Lanes()
        whole.fetch(feed, window, ranks, feed.now_ns(), False)
        assert lanes.cells == whole.cells


def _line(cells: list[Cell], column_ns: int, look: Look = LOOK) -> str:
    return "".join(text for text, _ in lane_line(cells, column_ns, look, EAGER))


def test_a_cell_shows_the_share_of_work_as_height() -> None:
    cells = [Cell(REPLAY, 1.0), Cell(REPLAY, 0.55), Cell(WAIT_STAGE, 0.2), Cell(WAIT_STAGE, 0.01), Cell(None, None)]
    assert _line(cells, 100 * MS) == "▇▄▁░ "
    assert _line(cells, 100 * MS, PLAIN) == "##2- "
    assert lane_line([Cell(WAIT_STAGE, 0.2)], 100 * MS, LOOK, EAGER) == [("▁", f"p{EAGER}")]


def test_a_span_names_its_micro_batch_once_where_its_work_begins() -> None:
    cells = [Cell(3, 1.0, 7), *[Cell(REPLAY, 1.0, 7)] * 3, Cell(WAIT_STAGE, 0.0, 7), *[Cell(REPLAY, 1.0, 12)] * 4]
    assert _line(cells, 5 * MS) == "7▇▇▇░12▇▇"
    assert _line([Cell(REPLAY, 1.0, 12)], 5 * MS) == "▇"


def test_an_eager_launch_is_marked_at_every_zoom() -> None:
    cells = [Cell(EAGER, 1.0, None, "eager"), Cell(REPLAY, 1.0)]
    assert _line(cells, 100 * MS)[0] == "e"
    assert _line(cells, 5 * MS)[0] == "e"


def test_a_phase_that_the_table_does_not_have_is_not_drawn() -> None:
    assert _line([Cell(99, 1.0)], 100 * MS) == " "


@given(st.integers(0, 11), st.integers(1, 120), st.integers(0, 600_000))
def test_the_axis_has_a_span_a_column_and_the_marker_at_now(zoom: int, count: int, at_ms: int) -> None:
    column = ZOOM_NS[zoom]
    columns = count
    spans = axis(at_ms * MS, column, columns, 0, columns // 2, None)
    assert len(spans) == columns
    assert all(cell_len(text) == 1 for text, _ in spans)
    assert spans[columns // 2][0] == "▾"


def test_tiles_join_neighbours_of_one_role() -> None:
    spans = [("a", "x")] * 6 + [("b", "y")] * 6
    assert tiles(spans, 2) == [(("aaaaaa", "x"), ("bb", "y")), (("bbbb", "y"),)]
    assert TILE == 8


@pytest.mark.parametrize("width", [36, 76, 116, 129, 130, 156, 200])
@pytest.mark.parametrize("look", [LOOK, PLAIN])
def test_the_help_says_all_of_itself_in_any_width(width: int, look: Look) -> None:
    able = {key.needs for key in KEYS}
    lines = [line for item in help_listing(able, look, width).items for line in item.lines]
    assert all(width_of(line) <= width for line in lines)
    rows = ["".join(text for text, _ in line) for line in lines]
    edge = next(row.index(" Phases, from stacks") for row in rows if " Phases, from stacks" in row)
    if edge:
        assert all(row[edge - 1 : edge + 1].isspace() for row in rows if len(row) > edge)
    columns = (row[:edge] if edge else row for row in rows), (row[edge:] for row in rows)
    texts = [" ".join(" ".join(column).split()) for column in columns]
    assert all(" ".join(key.help.split()) in texts[0] for key in KEYS)
    assert texts[-1].count(MEANING["work"]) == sum(phase.kind == "work" for phase in PHASES)
    assert all(f"{word.show} {word.means}" in texts[-1] for word in WORDS)
    assert (COLOUR_ALONE in texts[-1]) == (look is LOOK), (
        "where phases are told apart by more than colour, no word of it"
    )
    assert "…" not in texts[0] + texts[1]


def test_the_load_of_one_server_is_not_drawn_for_the_next() -> None:
    feed = FakeFeed()
    state = State(feed)
    for _ in range(3):
        state.refresh()
        feed.at_ns += SECOND
    assert len(state.history.tokens_per_s) == 3
    header = msgspec.structs.replace(feed.base.header, launcher_pid=4343)
    feed.base = msgspec.structs.replace(feed.base, header=header)
    state.refresh()
    assert len(state.history.tokens_per_s) == 1
