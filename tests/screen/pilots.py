"""Runs the app on a fake feed and reads what its widgets show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from textual import events
from textual.pilot import Pilot

from ppscope.app import PpscopeApp
from ppscope.widgets.lines import LineView
from tests.fake_feed import SITUATIONS, FakeFeed


class Running(NamedTuple):
    """A running app, its pilot and its feed."""

    app: PpscopeApp
    pilot: Pilot[None]
    feed: FakeFeed

    async def press(self, *keys: str) -> None:
        """Press keys, each handled before the next, and wait until they have been drawn."""
        for key in keys:
            self.app.post_message(events.Key(key, key if len(key) == 1 else None))
            await self.settle()

    async def settle(self) -> None:
        """Wait until app and widgets have emptied their queues; no clock is asked."""
        for _ in range(2):
            done = asyncio.Event()
            self.app.call_later(done.set)
            await done.wait()
            if self.app.is_running:
                await self.pilot.pause(0)

    def live(self) -> bool:
        """Whether the lanes follow the present."""
        return self.app.state.window.live

    def in_panel(self) -> bool:
        """Whether the panel has the keys."""
        return self.app.state.in_panel

    def level(self) -> type | None:
        """The kind of the deepest level, None at the stages."""
        levels = self.app.state.levels
        return type(levels[-1]) if levels else None

    def folded_out(self) -> int:
        """How many stages show their ranks."""
        return len(self.app.state.folded_out)

    def shows(self, selector: str) -> bool:
        """Whether a widget is displayed."""
        return self.app.query_one(selector).display

    def text(self, *ids: str) -> str:
        """What the line views show; with ids only those."""
        views = [view for view in self.app.screen.query(LineView) if view.display and (not ids or view.id in ids)]
        return "\n".join("".join(text for text, _ in line) for view in views for line in view.lines)

    def labels(self) -> list[str]:
        """The label rows, columns joined."""
        views = [view for view in self.app.query(".label").results(LineView) if view.display]
        rows = max(len(view.lines) for view in views)
        return ["".join(text for view in views for text, _ in view.lines[row]) for row in range(rows)]

    def lanes(self) -> list[str]:
        """Axis and lanes, tiles joined."""
        views = [view for view in self.app.query("Tile").results(LineView) if view.display]
        return ["".join("".join(t for t, _ in view.lines[row]) for view in views) for row in range(len(views[0].lines))]


def make(situation: str = "serial", **options: Any) -> PpscopeApp:
    """An app on a situation, in full colour unless told otherwise."""
    return PpscopeApp(SITUATIONS[situation](), **{"colours": "full", **options})


@asynccontextmanager
async def running(
    situation: str | Callable[[], FakeFeed] = "serial", size: tuple[int, int] = (120, 40), **options: Any
) -> AsyncIterator[Running]:
    """Run the app without a terminal."""
    feed = SITUATIONS[situation]() if isinstance(situation, str) else situation()
    app = PpscopeApp(feed, **{"colours": "full", **options})
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield Running(app, pilot, feed)
