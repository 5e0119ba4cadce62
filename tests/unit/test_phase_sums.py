"""Packed sums and packed spans against plain lists of the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ppscope.phase_sums import PhaseSums
from ppscope.session.bucket_slots import BucketSlots
from ppscope.span_columns import AT_HAND_NS, BLOCK, Row, SpanColumns

GRAIN_NS = 1000
SECOND = 1_000_000_000

# Gaps from none to far more than a chunk of cells.
steps = st.lists(
    st.tuples(st.sampled_from((0, 1, 700, 90_000, 5_000_000)), st.integers(1, 400_000), st.integers(0, 3)), max_size=40
)


def laid_out(given_steps: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    spans, at = [], 3_000_000
    for gap, length, phase in given_steps:
        spans.append((at + gap, at + gap + length, phase))
        at += gap + length
    return spans


@given(steps, st.integers(2_900, 12_000), st.integers(-5, 9_000))
def test_sums_of_any_cells_equal_the_plain_sum(
    given_steps: list[tuple[int, int, int]], first: int, length: int
) -> None:
    spans, sums = laid_out(given_steps), PhaseSums(GRAIN_NS)
    expected: dict[int, int] = {}
    for start, end, phase in spans:
        sums.add(start, end, phase)
        took = min(end, (first + length) * GRAIN_NS) - max(start, first * GRAIN_NS)
        if took > 0:
            expected[phase] = expected.get(phase, 0) + took
    assert sums.between(first, first + length) == expected


@given(steps, st.integers(0, 40_000_000))
def test_dropping_takes_whole_old_chunks_and_nothing_newer(
    given_steps: list[tuple[int, int, int]], before_ns: int
) -> None:
    sums = PhaseSums(GRAIN_NS)
    for span in laid_out(given_steps):
        sums.add(*span)
    before = sums.between(before_ns // GRAIN_NS, 10**9)
    sums.drop_before(before_ns)
    assert sums.between(before_ns // GRAIN_NS, 10**9) == before
    if sums:
        assert sums.oldest_ns > before_ns - 128 * GRAIN_NS


def test_times_of_one_cell_join_what_was_added() -> None:
    sums = PhaseSums(GRAIN_NS)
    sums.add(500, 1500, 2)
    sums.add_times(1, {2: 100, 0: 7})
    assert sums.between(0, 1) == {2: 500}
    assert sums.between(1, 2) == {2: 600, 0: 7}


@given(
    st.lists(st.tuples(st.integers(0, 1200), st.integers(0, 3), st.integers(-1, 3)), max_size=30), st.integers(0, 1200)
)
def test_the_only_slot_of_some_buckets(marks: list[tuple[int, int, int]], first: int) -> None:
    slots = BucketSlots()
    seen: dict[int, set[int]] = {}
    for bucket, more, slot in marks:
        slots.mark(bucket, bucket + more, slot)
        for each in range(bucket, bucket + more + 1) if slot >= 0 else ():
            seen.setdefault(each, set()).add(slot)
    for upto in (first, first + 1, first + 40):
        found = set().union(*(seen.get(bucket, set()) for bucket in range(first, upto)))
        assert slots.only(first, upto) == (found.pop() if len(found) == 1 else -1)
    slots.drop_before(512)
    assert all(slots.only(bucket, bucket + 1) == -1 for bucket in range(512))


def rows(count: int, length_ns: int = SECOND) -> list[Row]:
    """Spans with a gap now and then; every seventh has a micro-batch."""
    found: list[Row] = []
    at = 5 * SECOND
    for i in range(count):
        at += i % 5 == 0 and 17
        found.append((at, at + length_ns + i % 3, i % 4, i % 100, i % 8 if i % 7 == 0 else -1))
        at = found[-1][1]
    return found


def filled(spans: list[Row]) -> SpanColumns:
    columns = SpanColumns()
    for row in spans:
        columns.append(row)
    return columns


@given(st.integers(0, 3 * BLOCK + 5), st.integers(0, 1600), st.integers(0, 1600))
def test_what_touches_a_window_is_the_same_compressed_or_not(count: int, start_s: int, length_s: int) -> None:
    spans = rows(count)
    columns = filled(spans)
    start, end = start_s * SECOND, (start_s + length_s) * SECOND
    assert list(columns.touching(start, end)) == [row for row in spans if row[1] > start and row[0] < end]
    assert len(columns) == count
    assert columns.extent == ((spans[0][0], spans[-1][1]) if spans else None)


def test_only_what_is_older_than_two_minutes_is_compressed() -> None:
    quick, slow = filled(rows(4 * BLOCK, AT_HAND_NS // (5 * BLOCK))), filled(rows(4 * BLOCK))
    assert [isinstance(block, bytes) for block in quick._blocks] == [False] * 4
    assert [isinstance(block, bytes) for block in slow._blocks] == [True, True, False, False]
    assert slow._blocks[0] != slow._blocks[1]


def test_a_micro_batch_goes_to_the_span_at_an_instant_while_that_is_at_hand() -> None:
    spans = rows(3 * BLOCK)
    columns = filled(spans)
    for index in (2 * BLOCK, 3 * BLOCK - 2):
        start, _, phase, *_ = spans[index]
        assert not columns.mark_micro_batch(start + 5, (phase + 1) % 4, 3)
        assert columns.mark_micro_batch(start + 5, phase, 3)
        assert list(columns.touching(start + 5, start + 6)) == [(*spans[index][:4], 3)]
    assert not columns.mark_micro_batch(spans[5][0] + 5, spans[5][2], 3)
    assert not columns.mark_micro_batch(0, 0, 3)
    assert not columns.mark_micro_batch(spans[-1][1] + 1, spans[-1][2], 3)


def test_dropped_blocks_are_gone_and_the_rest_is_whole() -> None:
    spans = rows(4 * BLOCK)
    columns = filled(spans)
    columns.drop_before(spans[2 * BLOCK][0] + 1)
    assert list(columns.touching(0, 1 << 60)) == spans[2 * BLOCK :]
    for row in rows(2 * BLOCK):
        moved = (row[0] + spans[-1][1], row[1] + spans[-1][1], *row[2:])
        spans.append(moved)
        columns.append(moved)
    assert list(columns.touching(0, 1 << 60)) == spans[2 * BLOCK :]
    columns.drop_before(1 << 60)
    assert list(columns.touching(0, 1 << 60)) == spans[-BLOCK:]
