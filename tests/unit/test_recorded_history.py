"""The load history of a recording: a row a second, however seldom the load was read."""

from __future__ import annotations

import pytest

from ppscope.records import LoadSample
from ppscope.snapshot.recorded import session_of
from tests.recordings import SECOND, START_NS, head

Row = tuple[float | None, float | None, float | None]


def history(every_s: float, readings: int) -> tuple[Row, ...]:
    times = [START_NS + int(number * every_s * SECOND) for number in range(readings)]
    samples = [LoadSample(at, "metrics", queued=number, tokens_per_s=5.0) for number, at in enumerate(times)]
    return session_of([*head(2), *samples]).screen().load_history


@pytest.mark.parametrize("every_s", [0.5, 1.0, 3.5, 4.5])
def test_a_row_a_second_holds_the_last_reading(every_s: float) -> None:
    rows = history(every_s, 12)
    assert len(rows) == int(11 * every_s) + 1
    assert {row[0] for row in rows} == {5.0}
    assert [row[2] for row in rows] == [int(at / every_s) for at in range(len(rows))]


def test_seconds_without_a_fresh_reading_are_not_known() -> None:
    rows = history(20.0, 3)
    assert [row[0] for row in rows] == [*[5.0] * 6, *[None] * 14, *[5.0] * 21], "once it is read so seldom, it holds"
