"""How often `/metrics` is read, and how long what it said is the last word."""

from __future__ import annotations

import pytest

from ppscope.records import LoadSample
from ppscope.session.load import LoadState
from ppscope.sources.server_scrape import EARLY, SLOWEST_S, Pace

SECOND = 1_000_000_000


def told(at_s: float, tokens_per_s: float | None = 5.0, queued: int | None = 2) -> LoadSample:
    return LoadSample(int(at_s * SECOND), "metrics", queued=queued, tokens_per_s=tokens_per_s)


@pytest.mark.parametrize(
    ("took_s", "early_s", "later_s"),
    [(0.001, 0.999, 0.999), (0.017, 0.983, 1.7), (0.06, 1.2, 6.0), (0.2, 4.0, 20.0), (3.0, 30.0, 30.0)],
)
def test_after_the_first_pages_a_page_takes_a_hundredth_of_the_time_at_most(
    took_s: float, early_s: float, later_s: float
) -> None:
    pace = Pace()
    assert [pace.pause_s(took_s) for _ in range(EARLY)] == pytest.approx([early_s] * EARLY)
    assert pace.pause_s(took_s) == pytest.approx(later_s)


def test_an_answer_that_waited_in_a_queue_is_not_taken_for_a_dear_page() -> None:
    pace = Pace()
    for _ in range(EARLY):
        pace.pause_s(0.017)
    assert pace.pause_s(2.0) == pytest.approx(1.7)
    assert [pace.pause_s(2.0) for _ in range(5)][-1] == SLOWEST_S, "but one that is always slow is asked for seldom"


@pytest.mark.parametrize("every_s", [1, 3, 10, 25])
def test_the_load_of_a_page_that_is_read_seldom_holds_until_the_next(every_s: int) -> None:
    load = LoadState()
    for number in range(4):
        load.add(told(number * every_s))
        shown = load.view(int((number + 0.95) * every_s * SECOND), None)
        assert number == 0 or (shown.tokens_per_s, shown.queued) == (5.0, 2)
    assert load.queued_since(int(3.9 * every_s * SECOND)) == 0
    gone = load.view(int((3 + 2) * every_s * SECOND) + 6 * SECOND, None)
    assert (gone.tokens_per_s, gone.queued, gone.source) == (None, None, None), "it fell silent"


def test_after_a_long_silence_one_reading_is_not_fresh_for_as_long() -> None:
    load = LoadState()
    load.add(told(0))
    load.add(told(3600))
    assert load.view(3655 * SECOND, None).queued == 2
    assert load.view(3661 * SECOND, None).queued is None
