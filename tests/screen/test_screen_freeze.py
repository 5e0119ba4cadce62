"""A frozen screen holds its stacks as well: shown, opened and copied they are those of that instant."""

from __future__ import annotations

from unittest.mock import patch

import msgspec

from ppscope.app import PpscopeApp
from ppscope.app_drill import SourceLevel
from ppscope.records import RankKey
from ppscope.views import StackNode, ThreadStacks
from tests.fake_feed import SECOND, FakeFeed
from tests.screen.pilots import Running, running


class Moving(FakeFeed):
    """Its stacks say how many seconds have gone by; of older ones it knows nothing any more a minute later."""

    def stacks(self, rank: RankKey, seconds: float, until_ns: int | None = None) -> list[ThreadStacks]:
        if until_ns is not None and until_ns < self.at_ns - 60 * SECOND:
            return []
        at = (self.at_ns if until_ns is None else until_ns) // SECOND
        leaf = StackNode(f"at_{at}_of_{rank.pp}", "a.py", 3, 1.0, 1.0, 0, ())
        return [ThreadStacks(rank, 1, "MainThread", seconds, StackNode("all", "", None, 1.0, 0.0, 0, (leaf,)))]


async def go_on(run: Running, seconds: int) -> None:
    run.feed.at_ns += seconds * SECOND
    run.feed.base = msgspec.structs.replace(run.feed.base, now_ns=run.feed.at_ns)
    run.app.paint()
    await run.settle()


async def test_frozen_stacks_stay_those_of_the_frozen_instant() -> None:
    async with running(Moving) as run:
        await run.press("space", "3")
        shown = run.text("pane")
        assert "at_1030_of_0" in shown
        for seconds in (1, 5, 120):
            await go_on(run, seconds)
            assert run.text("pane") == shown
        await run.press("tab", "down", "down")
        with patch.object(PpscopeApp, "copy_to_clipboard") as copy:
            await run.press("y")
        assert "at_1030_of_0" in copy.call_args.args[0]
        await run.press("enter")
        assert run.level() is SourceLevel
        source = run.text("pane")
        assert "at_1030_of_0" in source
        await go_on(run, 5)
        assert run.text("pane") == source
        await run.press("escape", "space")
        assert "at_1161_of_0" in run.text("pane")
        await run.press("space")
        await go_on(run, 5)
        assert "at_1161_of_0" in run.text("pane")


async def test_frozen_stacks_of_another_rank_are_of_the_same_instant() -> None:
    async with running(Moving) as run:
        await run.press("3", "space")
        await go_on(run, 5)
        await run.press("down")
        assert "at_1030_of_1" in run.text("pane")


async def test_frozen_stacks_of_every_rank_are_there_long_after() -> None:
    async with running(Moving) as run:
        await run.press("space")
        for _ in range(20):
            run.app._tick()
        await go_on(run, 120)
        await run.press("3", "down", "down")
        assert "at_1030_of_2" in run.text("pane")


async def test_frozen_stacks_that_are_opened_late_are_still_there() -> None:
    async with running(Moving) as run:
        await run.press("space")
        await go_on(run, 120)
        await run.press("3")
        assert "at_1030_of_0" in run.text("pane")
