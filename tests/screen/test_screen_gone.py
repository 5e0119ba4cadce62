"""The end of a server, or of ppscope's collector, while the screen is frozen, a dialog is open, or neither: said, and nobody is asked."""

from __future__ import annotations

import msgspec
import pytest

from ppscope.app_drill import CandidatesLevel
from ppscope.records import Attach, RankKey
from ppscope.views import BurstOffer, BurstProgress, LaunchRow
from ppscope.widgets.burst_dialog import BurstDialog
from tests.fake_feed import SECOND, FakeFeed
from tests.screen.pilots import Running, running

KILLED = "the collector ended unexpectedly: killed by SIGKILL, as the out-of-memory killer does"


@pytest.mark.parametrize("key", ["p", "question_mark"])
async def test_a_click_on_what_lies_over_the_screen_moves_no_focus_below(key: str) -> None:
    async with running(with_offer, (160, 50)) as run:
        await run.press(key)
        await run.pilot.click("TextPane", offset=(4, 4))
        await run.press("escape")
        assert not run.app.state.in_panel


def with_offer() -> FakeFeed:
    feed = FakeFeed()
    feed.offer = BurstOffer(8, 2, "cuda", 8, "/tmp", (), (), ())
    return feed


def server_ends(feed: FakeFeed, *candidates: tuple[int, str]) -> None:
    header = msgspec.structs.replace(feed.base.header, state="gone", candidates=candidates)
    feed.base = msgspec.structs.replace(feed.base, header=header)


def collector_ends(feed: FakeFeed) -> None:
    feed.end = KILLED
    feed.offer = None


async def tick(run: Running) -> None:
    run.app.paint()
    await run.settle()


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("others", [1, 2])
async def test_the_servers_end_is_said_and_others_are_offered(frozen: bool, others: int) -> None:
    async with running(with_offer, (160, 50)) as run:
        await run.press(*["space"] * frozen)
        shown = run.app.state.screen
        server_ends(run.feed, *[(5151, "Kimi-K2"), (6161, "Llama")][:others])
        run.feed.at_ns += 5 * SECOND
        await tick(run)
        assert "the server is gone" in run.text("strip")
        assert "attach to 5151" in run.text("strip")
        assert "■ gone" in run.text("header")
        assert ("frozen" in run.text("header")) == frozen
        assert (run.app.state.screen is shown) == frozen, "what is frozen stays"
        assert "profile" not in run.text("footer")
        await run.press("a")
        if others == 2:
            assert run.level() is CandidatesLevel
            await run.press("down", "enter")
        assert run.feed.sent == [Attach(5151 if others == 1 else 6161)]
        assert not run.app.state.frozen, "what was frozen is the other server's no more"


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
async def test_the_collectors_end_is_told_from_the_servers(frozen: bool, gone: bool, size: tuple[int, int]) -> None:
    async with running(with_offer, size) as run:
        await run.press(*["space"] * frozen)
        if gone:
            server_ends(run.feed, (5151, "Kimi-K2"))
        collector_ends(run.feed)
        run.feed.at_ns += 5 * SECOND
        await tick(run)
        pid = 5151 if gone else run.feed.base.header.launcher_pid
        said = f"ppscope's collector ended; `ppscope attach {pid}` begins anew"
        assert said in run.text("strip")
        assert size[0] == 80 or "killed by SIGKILL" in run.text("strip")
        assert "server is gone" not in run.text("strip")
        assert "no other server" not in run.text()
        assert "■ ended" in run.text("header")
        await run.press("a")
        assert said in run.text("footer")
        await run.press("p")
        assert len(run.app.screen_stack) == 1
        assert run.feed.sent == []


async def test_a_choice_of_servers_that_is_open_asks_nobody_any_more() -> None:
    async with running(with_offer, (160, 50)) as run:
        server_ends(run.feed, (5151, "Kimi-K2"), (6161, "Llama"))
        await tick(run)
        await run.press("a")
        collector_ends(run.feed)
        await run.press("enter")
        assert run.feed.sent == []
        assert "attaching" not in run.text("footer")
        assert "`ppscope attach 5151` begins anew" in run.text("footer")


@pytest.mark.parametrize("ends", [server_ends, collector_ends])
@pytest.mark.parametrize("key", ["enter", "x"])
async def test_an_open_dialog_asks_nobody_any_more(ends: object, key: str) -> None:
    assert callable(ends)
    async with running(with_offer, (160, 50)) as run:
        if key == "x":
            progress = BurstProgress(1, "running", "", "", (), True, 1.0, run.feed.at_ns)
            run.feed.base = msgspec.structs.replace(run.feed.base, burst=progress)
            await tick(run)
        await run.press("p")
        assert isinstance(run.app.screen, BurstDialog)
        ends(run.feed)
        await run.press(key)
        await tick(run)
        assert len(run.app.screen_stack) == 1
        assert run.feed.sent == []
        assert "asked for" not in run.text("footer")
        assert ("begins anew" if ends is collector_ends else "the server is gone") in run.text("footer")


async def test_a_burst_in_a_frozen_screen_is_followed() -> None:
    async with running(with_offer, (160, 50)) as run:
        await run.press("space")
        await run.press("p", "k", "enter")
        going = BurstProgress(1, "running", "all ranks record", "", (), True, 1.0, run.feed.at_ns, folder="/tmp/kept")
        run.feed.base = msgspec.structs.replace(run.feed.base, burst=going)
        await tick(run)
        assert "burst running" in run.text("strip")
        done = msgspec.structs.replace(
            going,
            state="done",
            active=False,
            results=1,
            start_ns=run.feed.at_ns - 2 * SECOND,
            end_ns=run.feed.at_ns - SECOND,
        )
        launch = LaunchRow("eager", "moe_kernel", 3, 5.0, 0, None, None, None, None, "exact", RankKey(0, 0, 0))
        run.feed.base = msgspec.structs.replace(run.feed.base, burst=done, launches=(launch,))
        await tick(run)
        assert "burst done" in run.text("strip")
        assert run.app.state.kept == "/tmp/kept"
        assert run.app.state.screen.launches == ()
        assert "Space ends the freeze" in run.text("footer")
        await run.press("space", "2")
        assert "moe_kernel" in run.text("pane")
