"""How often `/metrics` is read."""

from __future__ import annotations

import pytest

from ppscope.sources.server_scrape import EARLY, SLOWEST_S, Pace


@pytest.mark.parametrize(
    ("took_s", "early_s", "later_s"),
    [
        (0.001, 0.999, 0.999),
        (0.01, 0.99, 2.0),
        (0.017, 0.983, 3.4),
        (0.1, 2.0, 3.4),
        (0.2, 4.0, 4.0),
        (1.0, 20.0, 20.0),
        (3.0, 30.0, 30.0),
    ],
)
def test_after_the_first_pages_a_page_is_asked_for_as_seldom_as_keeps_the_load_fresh(
    took_s: float, early_s: float, later_s: float
) -> None:
    pace = Pace()
    assert [pace.pause_s(took_s) for _ in range(EARLY)] == pytest.approx([early_s] * EARLY)
    assert pace.pause_s(took_s) == pytest.approx(later_s)


def test_an_answer_that_waited_in_a_queue_is_not_taken_for_a_dear_page() -> None:
    pace = Pace()
    for _ in range(EARLY):
        pace.pause_s(0.01)
    assert pace.pause_s(1.0) == pytest.approx(2.0)
    assert pace.pause_s(2.0) == pytest.approx(1.5), "so that the load stays fresh"
    assert [pace.pause_s(2.0) for _ in range(5)][-1] == SLOWEST_S, "but one that is always slow is asked for seldom"
