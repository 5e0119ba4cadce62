"""The column store against a plain list of spans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.span_columns import BLOCK
from ppscope.timeline import COARSE_COLUMN_NS, RankTimeline
from ppscope.views import PhaseStyle

STYLES = tuple(
    PhaseStyle(name=name, label=name, kind=kind, glyph="x", ascii="x", colour="red", colour16="red")
    for name, kind in (("forward", "work"), ("recv", "wait"), ("idle", "idle"))
)
SECOND = 1_000_000_000
RawSpan = tuple[int, int, int]

spans_strategy = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60), st.integers(0, 2)), max_size=60)


def laid_out(steps: list[tuple[int, int, int]], unit: int = 7_000_003) -> list[RawSpan]:
    spans, at = [], 5 * SECOND
    for gap, length, phase in steps:
        start = at + gap * unit
        at = start + length * unit
        spans.append((start, at, phase))
    return spans


def filled(spans: list[RawSpan]) -> RankTimeline:
    timeline = RankTimeline(STYLES)
    for start, end, phase in spans:
        timeline.add(start, end, phase, stack=phase)
    return timeline


@given(spans_strategy, st.integers(0, 3000), st.integers(1, 3000))
def test_times_equal_the_plain_sum(steps: list[tuple[int, int, int]], first: int, length: int) -> None:
    spans = laid_out(steps)
    start, end = 5 * SECOND + first * 7_000_000, 5 * SECOND + (first + length) * 7_000_000
    expected: dict[int, int] = {}
    for begin, finish, phase in spans:
        took = min(finish, end) - max(begin, start)
        if took > 0:
            expected[phase] = expected.get(phase, 0) + took
    assert filled(spans).times(start, end) == expected


@given(spans_strategy, st.integers(1, 40))
def test_cells_hold_the_window_in_equal_columns(steps: list[tuple[int, int, int]], columns: int) -> None:
    spans = laid_out(steps)
    timeline = filled(spans)
    start, end = 4 * SECOND, 16 * SECOND
    cells = timeline.cells(start, end, columns)
    assert len(cells) == columns
    if (end - start) / columns >= COARSE_COLUMN_NS:
        return
    width = (end - start) / columns
    for i, cell in enumerate(cells):
        times = timeline.times(int(start + i * width), int(start + (i + 1) * width))
        seen = sum(times.values())
        if seen < 1000:  # a column edge may fall a nanosecond to either side
            continue
        assert cell.phase is not None
        assert times.get(cell.phase, 0) >= max(times.values()) - 1000
        assert cell.work == pytest.approx(times.get(0, 0) / seen, abs=1e-3)


def test_overlapping_windows_are_not_counted_twice() -> None:
    timeline = filled([(0, 100, 0), (50, 150, 1), (60, 90, 2)])
    assert timeline.times(0, 200) == {0: 100, 1: 50}


def test_zoomed_far_out_the_seconds_say_the_same() -> None:
    timeline = filled([(i * SECOND, i * SECOND + SECOND // 4, 0) for i in range(400)])
    (cell,) = timeline.cells(0, 400 * SECOND, 1)
    assert cell.phase == 0
    assert cell.work == 1.0
    assert [c.phase for c in timeline.cells(0, 800 * SECOND, 8)] == [0, 0, 0, 0, None, None, None, None]


def test_ten_minutes_are_kept_and_no_more() -> None:
    timeline = filled([(i * SECOND // 20, (i + 1) * SECOND // 20, i % 3) for i in range(40_000)])
    oldest, newest = timeline.extent or (0, 0)
    assert newest == 2000 * SECOND
    assert 600 * SECOND <= newest - oldest <= 600 * SECOND + BLOCK * SECOND // 20 + SECOND
    assert len(timeline) < 12_000 + BLOCK + 20


def test_a_dump_marks_only_a_span_of_its_own_phase() -> None:
    timeline = filled([(0, 100, 0), (100, 200, 1)])
    assert timeline.mark_micro_batch(50, 0, 3)
    assert not timeline.mark_micro_batch(150, 0, 4)
    assert not timeline.mark_micro_batch(500, 1, 4)
    assert [(s.micro_batch, s.provenance) for s in timeline.spans(0, 200)] == [(3, "inferred"), (None, "sampled")]
    assert timeline.cells(0, 200, 2)[0].micro_batch == 3
