"""A terminal in which not all fits: nothing that was not shown is done, and what was open is there again."""

from __future__ import annotations

import pytest

from ppscope.records import Burst
from ppscope.views import BurstOffer
from ppscope.widgets.burst_dialog import BurstDialog
from ppscope.widgets.text_screen import TextPane
from tests.fake_feed import FakeFeed
from tests.screen.pilots import Running, running

COSTS = tuple(
    f"cost {number}: the profiler slows every stage down and the export holds the scheduler" for number in range(6)
)


def with_offer() -> FakeFeed:
    feed = FakeFeed()
    feed.offer = BurstOffer(8, 2, "cuda", 8, "/tmp", COSTS, ("it may kill a stage",), ("stacks may kill it sooner",))
    return feed


async def resized(run: Running, width: int, height: int) -> None:
    await run.pilot.resize_terminal(width, height)
    await run.settle()
    await run.settle()


async def test_a_filter_that_is_typed_has_the_keys_again_after_a_small_moment() -> None:
    async with running() as run:
        await run.press("slash", "p", "p")
        await resized(run, 60, 12)
        assert not run.shows("#main")
        await resized(run, 120, 40)
        assert run.shows("#filter")
        await run.press("x")
        assert run.app.state.filter == "ppx"
        await run.press("q", "p")
        assert run.app.state.filter == "ppxqp"
        await run.press("escape")
        assert not run.shows("#filter")
        assert run.app.state.filter == ""


async def test_esc_closes_a_filter_that_has_lost_the_keys() -> None:
    async with running() as run:
        await run.press("slash", "p", "p")
        run.app.screen.set_focus(None)
        await run.press("escape")
        assert not run.shows("#filter")
        assert run.shows("#footer")
        assert run.app.state.filter == ""


async def test_no_burst_is_asked_for_where_the_screen_is_too_small_to_say_so() -> None:
    async with running(with_offer, (40, 10)) as run:
        await run.press("p")
        assert len(run.app.screen_stack) == 1
        assert run.feed.sent == []


@pytest.mark.parametrize("size", [(40, 10), (80, 12)])
async def test_a_burst_starts_once_all_it_may_cost_was_shown(size: tuple[int, int]) -> None:
    async with running(with_offer, (80, 24)) as run:
        await run.press("p")
        await resized(run, *size)
        assert isinstance(run.app.screen, BurstDialog)
        assert "kill" not in run.text()
        shown = run.text()
        await run.press("enter")
        assert run.feed.sent == []
        assert "PgDn more" in run.text("text-foot")
        for _ in range(20):
            await run.press("pagedown")
            shown += run.text()
        assert all(f"cost {number}:" in shown for number in range(6))
        assert "it may kill a stage" in " ".join(shown.split())
        await run.press("home", "enter")
        assert run.feed.sent == []
        await run.press("end", "enter")
        assert run.feed.sent == [Burst(2, graphs_expected=False)]


async def test_a_risk_that_comes_with_stacks_has_to_be_shown_as_well() -> None:
    async with running(with_offer, (80, 24)) as run:
        await run.press("p")
        rows = len(run.app.screen.query_one("TextPane").lines)  # type: ignore[attr-defined]
        await resized(run, 80, rows + 1)
        assert run.text("text-foot").strip() == ""
        await run.press("w")
        assert "PgDn more" in run.text("text-foot")
        await run.press("enter")
        assert run.feed.sent == []
        await run.press("pagedown", "enter")
        assert run.feed.sent == [Burst(2, True, graphs_expected=False)]


async def test_a_terminal_that_cuts_the_rows_starts_nothing() -> None:
    async with running(with_offer, (80, 40)) as run:
        await run.press("p")
        await resized(run, 16, 300)
        await run.press("enter")
        assert run.feed.sent == []


async def test_of_what_was_not_drawn_yet_the_end_was_not_shown() -> None:
    async with running() as run:
        assert not TextPane(run.app.look).at_end
