"""A long recording on the screen: all of it can be scrolled to, and figures are those of where one looks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ppscope.app import PpscopeApp
from ppscope.records import AnyRecord
from ppscope.snapshot.index import Index
from ppscope.snapshot.read import read_file
from ppscope.snapshot.save import Saver
from ppscope.snapshot.scrub import RecordingFeed
from tests.recordings import MS, SECOND, head, second
from tests.screen.pilots import Running

MINUTES = 20


def records() -> list[AnyRecord]:
    """Twenty minutes; the throughput is the number of the minute."""
    rest = (r for at in range(60 * MINUTES) for r in second(at, turn_ns=30 * MS, tokens_per_s=float(at // 60)))
    return [*head(), *rest]


INDEX = Index.of(records())


@asynccontextmanager
async def recorded(**options: object) -> AsyncIterator[Running]:
    feed = RecordingFeed(INDEX)
    app = PpscopeApp(feed, colours="full", save_snapshot=Saver(feed), **options)  # type: ignore[arg-type]
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        yield Running(app, pilot, feed)  # type: ignore[arg-type]


async def rest(run: Running) -> None:
    """Let the clock of the app tick until nothing more comes."""
    for _ in range(50):
        run.app._tick()
        await run.settle()
        if run.app.feed.screen().now_ns == min(run.app.state.window.end_ns, run.app.state.now_ns):
            break
    run.app.paint()
    await run.settle()


async def test_home_is_the_beginning_and_end_the_end() -> None:
    async with recorded() as run:
        assert "recording of 20:00" in run.text("header")
        assert " 19.0 tok/s" in run.text("header")
        await run.press("home")
        await rest(run)
        assert all(lane.strip() for lane in run.lanes()[1:5]), "nothing is empty at the beginning"
        assert "before the end" in run.text("header")
        assert " 0.0 tok/s" in run.text("header")
        await run.press("end")
        await rest(run)
        assert "before the end" not in run.text("header")
        assert " 19.0 tok/s" in run.text("header")


async def test_scrolling_through_all_of_it_leaves_no_lane_empty() -> None:
    async with recorded() as run:
        await run.press("minus", "minus", "minus", "minus", "minus", "home")
        screens = 0
        while not run.live() and screens < 200:
            await rest(run)
            first = run.lanes()[1]
            assert not first[: len(first) // 2].isspace()
            await run.press("right")
            screens += 1
        assert screens > 20


async def test_figures_say_of_when_they_are_while_they_follow() -> None:
    async with recorded() as run:
        await run.press("minus", "minus", "minus", "minus", "minus", *["left"] * 8)
        run.app.feed.screen()
        assert "back, figures of its end" in run.text("header")
        await rest(run)
        assert "before the end" in run.text("header")
        await run.press(*["left"] * 4)
        assert "back, figures " in run.text("header")


async def test_a_snapshot_is_of_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPSCOPE_SNAPSHOT_DIR", str(tmp_path))
    async with recorded() as run:
        await run.press("home", "right", "right", "right")
        await rest(run)
        run.app.action_snapshot()
    (page,) = tmp_path.glob("*.html")
    oldest, newest = read_file(page).index.extent()
    assert oldest == INDEX.extent()[0]
    assert newest - oldest < 30 * SECOND
