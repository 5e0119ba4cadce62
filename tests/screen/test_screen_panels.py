"""Panels: what is chosen is what is opened and copied, all of it can be reached."""

from __future__ import annotations

from unittest.mock import patch

import msgspec
import pytest

from ppscope.app import PpscopeApp
from ppscope.app_drill import LaunchLevel
from ppscope.records import GpuDevice, GpuSample, RankKey
from ppscope.views import BurstOffer, BurstProgress, GpuPanelRow, LaunchRow, SettingRow
from ppscope.widgets.listing import Pane
from tests.fake_feed import FakeFeed
from tests.screen.pilots import running


def copied(copy: object) -> str:
    return str(copy.call_args.args[0])  # type: ignore[attr-defined]


LAUNCH = LaunchRow(
    "eager", "vectorized_elementwise_kernel", 3, 5.0, 0, None, None, None, None, "exact", RankKey(0, 0, 0)
)


async def test_enter_opens_the_launch_that_is_chosen_where_many_share_a_name() -> None:
    rows = [msgspec.structs.replace(LAUNCH, op=op, gpu_us=us) for op, us in (("aten::add", 9.0), ("aten::mul", 7.0))]
    rows.append(msgspec.structs.replace(LAUNCH, op="aten::mul", gpu_us=5.0))
    feed = FakeFeed()
    done = BurstProgress(1, "done", "", "", (), False, 1.0, feed.at_ns, results=1)
    feed.base = msgspec.structs.replace(feed.base, launches=tuple(rows), burst=done)
    async with running(lambda: feed) as run:
        await run.press("2")
        for place, row in enumerate(rows):
            await run.press("tab", *["down"] * place, "enter")
            assert run.app.state.levels == [LaunchLevel(row)]
            await run.press("escape")


async def test_a_finding_taller_than_the_room_is_read_to_its_end_and_back() -> None:
    feed = FakeFeed()
    tall = msgspec.structs.replace(
        feed.base.findings[0], evidence=tuple(f"evidence {number}" for number in range(20)), remedy="--the-change 1"
    )
    feed.base = msgspec.structs.replace(feed.base, findings=(tall, *feed.base.findings[1:]))
    for down, up in (("down", "up"), ("pagedown", "pageup")):
        async with running(lambda: feed, (80, 24)) as run:
            await run.press("f")
            pane = run.app.query_one("#pane", Pane)
            seen = run.text("pane")
            assert "--the-change" not in seen
            presses = 0
            while pane.chosen == 0 and presses < 60:
                presses += 1
                await run.press(down)
                seen += run.text("pane")
            assert "--the-change" in seen
            assert all(f"evidence {number}" in seen for number in range(20))
            assert pane.chosen == 1
            await run.press("up")
            assert "--the-change" in run.text("pane"), "from below its end comes first"
            for _ in range(presses):
                await run.press(up)
            assert pane.chosen == 0
            assert tall.summary[:30] in run.text("pane")


def with_gpu(row: GpuPanelRow) -> FakeFeed:
    feed = FakeFeed()
    feed.base = msgspec.structs.replace(feed.base, gpus=(row,))
    return feed


@pytest.mark.parametrize(
    ("reasons", "throttle", "stalled_s", "said"),
    [
        (None, (), None, "86 W, 3 % util, throttle –, ranks PP0.0,D1·PP0.0"),
        (0, (), None, "86 W, 3 % util, throttle none, ranks PP0.0,D1·PP0.0"),
        (12, ("power", "heat"), None, "86 W, 3 % util, throttle power,heat, ranks PP0.0,D1·PP0.0"),
        (None, (), 12.0, "stalled 12 s, before that 86 W, 3 % util, throttle –, ranks PP0.0,D1·PP0.0"),
    ],
)
async def test_a_gpu_is_copied_as_it_is_shown(
    reasons: int | None, throttle: tuple[str, ...], stalled_s: float | None, said: str
) -> None:
    device = GpuDevice(0, "GPU-0", "NVIDIA B200", 600.0, 1 << 37)
    sample = GpuSample(0, 1, power_w=86.0, util_percent=3, throttle_reasons=reasons)
    ranks = (RankKey(0, 0, 0), RankKey(1, 0, 0))
    row = GpuPanelRow(device, sample, (86.0,), (3,), throttle, ranks, stalled_s)
    async with running(lambda: with_gpu(row), (160, 50)) as run:
        await run.press("4", "tab")
        assert "D1·PP0" in run.text("pane")
        with patch.object(PpscopeApp, "copy_to_clipboard") as copy:
            await run.press("y")
        assert copied(copy) == f"GPU 0 NVIDIA B200: {said}"


async def test_a_setting_that_is_not_known_is_copied_as_a_dash() -> None:
    feed = FakeFeed()
    feed.base = msgspec.structs.replace(feed.base, settings=(SettingRow("pp_size", None, "8", None, False),))
    async with running(lambda: feed) as run:
        await run.press("5", "tab")
        with patch.object(PpscopeApp, "copy_to_clipboard") as copy:
            await run.press("y")
        assert copied(copy) == "pp_size: requested –, resolved 8, observed –"


@pytest.mark.parametrize("dp", [0, 1])
async def test_replicas_are_told_apart_where_launches_and_a_burst_are_listed(dp: int) -> None:
    key = RankKey(dp, 0, 0)
    feed = FakeFeed()
    going = BurstProgress(1, "running", "", "", ((key, "records"),), True, 1.0, feed.at_ns)
    launch = msgspec.structs.replace(LAUNCH, rank=key)
    feed.base = msgspec.structs.replace(feed.base, launches=(launch,), burst=going)
    feed.offer = BurstOffer(8, 2, "cuda", 8, "/tmp", (), (), ())
    async with running(lambda: feed) as run:
        await run.press("2")
        assert ("D1·PP0 eager" in run.text("pane")) == bool(dp)
        await run.press("p")
        assert ("DP1 PP0 TP0" in run.text()) == bool(dp)


async def test_a_page_ends_at_the_last_stage_also_where_its_gpu_lane_is_below() -> None:
    async with running(lambda: FakeFeed(gpu_lanes=True), (120, 60)) as run:
        rows = run.app.state.rows
        assert rows[-1].kind == "gpu"
        await run.press("pagedown")
        assert run.app.state.cursor == len(rows) - 2
        await run.press("pageup")
        assert run.app.state.cursor == 0


@pytest.mark.parametrize("plain", [False, True])
async def test_the_help_names_the_command_palette_where_there_is_one(plain: bool) -> None:
    async with running(size=(200, 60), ascii=plain) as run:
        await run.press("question_mark")
        assert ("command palette" in run.text()) == (not plain)
