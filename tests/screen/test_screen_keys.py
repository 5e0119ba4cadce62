"""Every key does what the table says, on every situation."""

from __future__ import annotations

from unittest.mock import patch

import msgspec
import pytest

from ppscope.app import PpscopeApp
from ppscope.app_drill import CandidatesLevel, LaunchLevel, RankLevel, SourceLevel, SpanLevel
from ppscope.keys import KEYS, as_markdown
from ppscope.records import Attach, Burst, RankKey
from ppscope.views import BurstOffer, BurstProgress, LaunchRow
from ppscope.widgets.help import HelpScreen
from ppscope.widgets.lines import LineView
from tests.fake_feed import MS, SECOND, SITUATIONS, FakeFeed
from tests.screen.pilots import running


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)


async def test_stage_keys_move_the_cursor_and_stop_at_both_ends() -> None:
    async with running() as run:
        for keys, row in (
            ("j", 1),
            ("down", 2),
            ("k", 1),
            ("up", 0),
            ("up", 0),
            ("pagedown", 7),
            ("down", 7),
            ("pageup", 0),
        ):
            await run.press(keys)
            assert run.app.state.cursor == row
            assert run.labels()[1 + row].startswith("▸")


async def test_enter_goes_from_stage_to_source_line_and_esc_all_the_way_back() -> None:
    async with running("tensor_parallel") as run:
        state = run.app.state
        await run.press("enter")
        assert [label.split()[0] for label in run.labels()[1:6]] == ["▾", "▸", "gpu", "TP1", "gpu"]
        await run.press("enter")
        assert state.levels == [RankLevel(RankKey(0, 0, 0))]
        await run.press("down", "down", "down", "enter")
        assert run.level() is SpanLevel
        assert "forward_decode" in run.text("pane")
        assert "▲" in run.lanes()[0]
        await run.press("down", "enter")
        assert run.level() is SourceLevel
        assert "model_runner.py:2284" in run.text("tabs")
        assert "called by" in run.text("pane")
        for depth in (2, 1, 0):
            await run.press("escape")
            assert len(state.levels) == depth
        assert run.folded_out() == 1
        await run.press("escape")
        assert run.folded_out() == 0
        assert not run.in_panel()


async def test_time_keys_pan_zoom_and_come_back() -> None:
    async with running() as run:
        window = run.app.state.window
        live = window.first
        await run.press("left")
        assert not run.live()
        assert window.first < live
        assert "back" in run.text("header")
        await run.press("home")
        assert window.start_ns == run.feed.start_ns
        await run.press("0")
        assert run.live()
        assert window.first == live
        await run.press("h", "h", "l", "l", "l")
        assert run.live()
        before = window.column_ns
        await run.press("plus")
        assert window.column_ns < before
        await run.press("minus", "minus")
        assert window.column_ns > before
        await run.press("left", "end")
        assert run.live()


async def test_zoomed_in_a_lane_names_its_micro_batches() -> None:
    async with running("healthy") as run:
        await run.press(*["plus"] * 3)
        lane = run.lanes()[1]
        assert all(digit in lane for digit in "01234567")


@pytest.mark.parametrize("colours", ["full", "ansi", "none"])
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("zoom", [0, 3])
async def test_the_legend_names_what_is_drawn(colours: str, plain: bool, zoom: int) -> None:
    async with running("healthy", (160, 50), colours=colours, ascii=plain) as run:
        await run.press(*["plus"] * zoom)
        drawn = set("".join(run.lanes()[1:]).replace("█", "▇"))
        legend = run.text("legend")
        named = {word for word in legend.replace("█", "▇").split() if len(word) == 1}
        if "0-9" in legend or zoom:
            drawn -= set("0123456789")
        if "▇" in named:
            drawn -= set("▁▂▃▄▅▆")
        assert drawn - {" "} <= named
        assert not named & set("▞▚▖") or zoom or "0-9" in legend, "heights are drawn, not glyphs"


async def test_freeze_holds_the_screen_while_the_feed_is_read_on() -> None:
    async with running() as run:
        await run.press("space")
        frozen, polls = run.app.state.now_ns, run.feed.polls
        lanes = run.lanes()
        run.feed.at_ns += 5 * SECOND
        run.feed.base = SITUATIONS["healthy"]().base
        await run.pilot.pause(0.5)
        run.app.paint()
        assert run.feed.polls > polls
        assert run.app.state.now_ns == frozen
        assert run.lanes() == lanes
        assert "frozen" in run.text("header")
        assert "pipeline.serial" in run.text("strip")
        await run.press("space")
        assert run.app.state.now_ns == frozen + 5 * SECOND
        assert "frozen" not in run.text("header")
        assert "181.3" in run.text("header")


async def test_panel_keys_open_panels_and_the_same_key_moves_into_it() -> None:
    async with running() as run:
        for key, word in (
            ("2", "ppscope trace"),
            ("3", "event_loop_pp"),
            ("4", "SM MHz"),
            ("5", "requested"),
            ("1", "seen"),
        ):
            await run.press(key)
            assert word in run.text("pane")
            assert not run.in_panel()
        await run.press("1")
        assert run.in_panel()
        await run.press("tab")
        assert not run.in_panel()
        await run.press("5", "f")
        assert run.app.state.panel == 1
        assert run.in_panel()


async def test_stacks_close_and_open_and_a_leaf_leads_to_its_source_line() -> None:
    async with running() as run:
        await run.press("3", "tab", *["down"] * 4)
        assert "run_batch" in run.text("pane")
        await run.press("enter")
        assert "run_batch" not in run.text("pane")
        await run.press("enter", "up", "enter")
        assert run.level() is SourceLevel
        assert "cuda/streams.py:231" in run.text("pane")


async def test_wrappers_are_left_out_of_the_tree_but_not_of_the_copy() -> None:
    async with running() as run:
        await run.press("3", "tab", *["down"] * 7)
        assert "_call_impl" not in run.text("pane")
        with patch.object(PpscopeApp, "copy_to_clipboard") as copy:
            await run.press("y")
        assert "_call_impl (torch/nn/modules/module.py:1784)\nforward (" in copy.call_args.args[0]


async def test_stacks_follow_the_cursor() -> None:
    async with running() as run:
        await run.press("3", "down", "down")
        assert "PP2 TP0" in run.text("pane")


async def test_filter_keeps_what_has_the_text_until_it_is_cleared() -> None:
    async with running("big") as run:
        await run.press("slash", "p", "p", "1", "1", "enter")
        assert [label.split()[1] for label in run.labels()[1:]] == ["PP11"]
        assert "filter: pp11" in run.text("footer")
        await run.press("escape")
        assert len(run.app.state.rows) == 16
        await run.press("slash", "x", "q", "escape")
        assert run.app.state.filter == ""
        assert run.app.is_running
        await run.press("3", "slash", *"replay", "enter")
        assert "event_loop_pp" not in run.text("pane")


async def test_a_filter_that_no_stage_has_is_for_stacks_and_leaves_the_stages() -> None:
    async with running() as run:
        await run.press("3", "slash", *"point_to", "enter")
        assert len(run.labels()) == 9
        assert "point_to_point_pyobj" in run.text("pane")
        assert "watchdog.py" not in run.text("pane")
        assert "no stage has it" in run.text("footer")
        await run.press("slash", "x", "x", "enter")
        for panel, said in (("3", "no stack of PP0 TP0 has 'point_toxx'"), ("5", "no setting has 'point_toxx'")):
            await run.press(panel)
            assert said in run.text("pane")


def _after_a_burst() -> FakeFeed:
    feed = FakeFeed(gpu_lanes=True)
    end_ns = feed.at_ns - SECOND
    feed.offer = BurstOffer(8, 2, "cuda", 8, "/tmp", (), (), ())
    progress = BurstProgress(1, "running", "", "", (), True, 1.0, end_ns, folder="/tmp/kept")
    done = msgspec.structs.replace(
        progress, state="done", active=False, results=1, start_ns=end_ns - 200 * MS, end_ns=end_ns
    )
    launch = LaunchRow("eager", "moe_kernel", 3, 5.0, 0, None, None, None, None, "exact", RankKey(0, 0, 0))
    busy = tuple(msgspec.structs.replace(s, busy=0.25, busy_source="trace") for s in feed.base.stages)
    feed.base = msgspec.structs.replace(feed.base, burst=progress)
    feed.later = msgspec.structs.replace(feed.base, burst=done, launches=(launch,), stages=busy)
    return feed


async def test_a_burst_leads_to_its_launches_and_leaves_no_empty_rows() -> None:
    async with running(_after_a_burst, (160, 80)) as run:
        assert len(run.labels()) == 17, "every stage has its GPU lane, whatever was visible before"
        run.app.keeps_burst = True
        assert run.feed.later is not None
        run.feed.base = run.feed.later
        run.feed.at_ns += 500 * MS
        run.app.paint()
        await run.settle()
        assert run.in_panel()
        assert "trace files kept in /tmp/kept" in run.text("pane")
        assert "25 %" in run.labels()[1]
        await run.press("enter")
        assert run.level() is LaunchLevel
        await run.press("escape", "escape", "0")
        run.feed.gpu_lanes = False
        run.feed.at_ns += 60 * SECOND
        run.app.paint()
        await run.settle()
        assert len(run.labels()) == 9
        assert "25 %" not in run.labels()[1], "the burst has left the window"


async def test_scrolled_back_the_figures_say_of_when_they_are() -> None:
    async with running(size=(160, 50)) as run:
        await run.press("left")
        assert "figures of now" in run.text("header")


async def test_nothing_is_said_to_be_in_order_before_anything_was_seen() -> None:
    async with running("healthy") as run:
        stages = tuple(msgspec.structs.replace(stage, phases=()) for stage in run.feed.base.stages)
        assert "no finding: nothing seen so far" in run.text("pane")
        run.feed.base = msgspec.structs.replace(run.feed.base, stages=stages)
        run.feed.at_ns += SECOND
        run.app.paint()
        assert "looking" in run.text("pane")
        assert "no finding" not in run.text("pane")


async def test_a_command_in_a_remedy_can_be_pasted_from_the_screen() -> None:
    command = "curl -X POST http://h:1/set -H 'Content-Type: application/json' -d '{\"a\": {\"b\": 1}}'"
    async with running() as run:
        finding = msgspec.structs.replace(run.feed.base.findings[0], remedy=f"Set it. Now: {command}. Then look.")
        run.feed.base = msgspec.structs.replace(run.feed.base, findings=(finding,))
        run.feed.at_ns += SECOND
        run.app.paint()
        rows = [row.strip() for row in run.text("pane").splitlines()]
        at = rows.index("curl -X POST http://h:1/set \\")
        assert " ".join(row.removesuffix(" \\") for row in rows[at : at + 3]) == command
        assert rows[at + 3] == "Then look."


async def test_copy_takes_the_finding_or_the_stack() -> None:
    async with running() as run:
        with patch.object(PpscopeApp, "copy_to_clipboard") as copy:
            await run.press("f", "down", "y")
            assert copy.call_args.args[0].startswith("graphs.disabled_by_flag (high, exact)\n")
            await run.press("3", *["down"] * 3, "y")
            assert "synchronize (torch/cuda/streams.py:231)" in copy.call_args.args[0]
            assert "copied" in run.text("footer")
            count = copy.call_count
            await run.press("2", "y")
            assert copy.call_count == count
            assert "nothing to copy" in run.text("footer")


async def test_help_shows_every_key_of_this_session_and_closes() -> None:
    async with running(size=(200, 50)) as run:
        await run.press("question_mark")
        assert isinstance(run.app.screen, HelpScreen)
        text = run.text()
        for key in KEYS:
            assert (key.help in text) == (not key.needs or key.needs in run.app.able)
        assert "command palette" in text
        await run.press("escape")
        assert len(run.app.screen_stack) == 1


async def test_help_says_where_in_it_one_is_and_every_row_can_be_reached() -> None:
    async with running(size=(80, 24)) as run:
        await run.press("question_mark")
        first = run.text("text-foot")
        assert "rows 1–" in first
        assert "End scroll" in first
        whole = int(first.rpartition("of ")[2])
        await run.press("end")
        assert f"–{whole} of {whole}" in run.text("text-foot")
        assert "before the scheduler's loop" not in run.text()
        seen = set(run.text().splitlines())
        await run.press("pageup")
        assert len(set(run.text().splitlines()) & seen) >= 1, "a page keeps a row of the one before"
        await run.press("home")
        assert run.text("text-foot") == first
        await run.press("down")
        assert "rows 2–" in run.text("text-foot")
    async with running(size=(200, 60)) as run:
        await run.press("question_mark")
        assert run.text("text-foot").strip() == "Esc back"


async def test_command_palette_lists_the_table() -> None:
    async with running() as run:
        listed = {command.title for command in run.app.get_system_commands(run.app.screen)}
        assert {key.help for key in KEYS if key.action in {"freeze", "filter", "copy", "quit", "panel(4)"}} <= listed
        await run.press("ctrl+p")
        assert len(run.app.screen_stack) == 2
        await run.press("escape")
        assert len(run.app.screen_stack) == 1


async def test_profile_and_snapshot_are_bound_only_where_they_work() -> None:
    async with running() as run:
        assert "profile" not in run.text("footer")
        assert "snapshot" not in run.text("footer")
        before = run.text("footer")
        await run.press("p", "s")
        assert run.text("footer") == before
        await run.press("a")
        assert "still there" in run.text("footer")

    feed = FakeFeed()
    feed.offer = BurstOffer(8, 2, "cuda", 8, "/tmp", ("it costs",), (), ())
    saved: list[str] = []

    class Saves:
        def __call__(self) -> str:
            saved.append("x")
            if len(saved) > 1:
                raise OSError("disk full")
            return "snap.html"

        def late_problem(self) -> None:
            return None

        def finish(self, say: object) -> None:
            return None

    app = PpscopeApp(feed, colours="full", save_snapshot=Saves())
    async with app.run_test(size=(160, 50)) as pilot:
        await pilot.press("p", "enter", "s")
        await pilot.pause()
        assert feed.sent == [Burst(2, graphs_expected=False)]
        assert saved == ["x"]
        footer = app.query_one("#footer", LineView)
        assert "snapshot: snap.html" in footer.lines[0][1][0]
        await pilot.press("s")
        assert "disk full" in footer.lines[0][1][0]


async def test_a_server_that_is_gone_offers_the_others() -> None:
    async with running("server_gone") as run:
        assert "■ gone" in run.text("header")
        assert "attach to 5151" in run.text("strip")
        await run.press("a")
        assert run.level() is CandidatesLevel
        await run.press("down", "enter")
        assert run.feed.sent == [Attach(6161)]
        assert run.app.state.levels == []


async def test_light_and_enlarge_go_back_and_forth() -> None:
    async with running() as run:
        await run.press("t")
        assert run.app.theme == "ppscope-light"
        await run.press("t", "3", "z")
        assert run.app.look.dark
        assert not run.shows("#lanes")
        await run.press("z")
        assert run.shows("#lanes")


@pytest.mark.parametrize(("key", "code"), [("q", 0), ("ctrl+c", 130)])
@pytest.mark.parametrize("where", [(), ("question_mark",), ("3", "tab"), ("enter",)])
async def test_quit_works_everywhere(key: str, code: int, where: tuple[str, ...]) -> None:
    async with running() as run:
        await run.press(*where)
        await run.pilot.press(key)
        assert run.app._exit
        assert (run.app.return_code or 0) == code


async def test_without_a_shell_that_could_bring_the_view_back_nothing_is_suspended() -> None:
    async with running() as run:
        await run.pilot.press("ctrl+z")
        assert "no shell is here" in run.text("footer")


async def test_mouse_chooses_rows_items_and_panels() -> None:
    async with running() as run:
        await run.pilot.click(".label", offset=(3, 4))
        assert run.app.state.cursor == 3
        await run.pilot.click("#tabs", offset=(32, 0))
        assert run.app.state.panel == 3
        await run.pilot.click("#strip", offset=(3, 0))
        assert run.app.state.panel == 1
        assert run.in_panel()


@pytest.mark.parametrize(
    ("width", "said"), [(40, "terminal too small: 80×24 needed"), (20, "80×24 needed"), (6, "80×24"), (2, "80×24")]
)
async def test_the_size_that_is_needed_is_said_in_the_smallest_terminal(width: int, said: str) -> None:
    async with running(size=(width, 3)) as run:
        assert run.text("small") == said


async def test_too_small_is_one_clear_line_and_growing_brings_the_screen_back() -> None:
    async with running(size=(79, 24)) as run:
        assert run.text("small") == "terminal too small: 80×24 needed"
        assert not run.shows("#main")
        await run.pilot.resize_terminal(80, 24)
        await run.pilot.pause()
        assert run.shows("#main")
        assert len(run.labels()) == 9
        await run.pilot.resize_terminal(160, 50)
        await run.pilot.pause()
        assert run.app.state.window.columns == 104
        assert "busy" in run.labels()[0]


@pytest.mark.parametrize(
    "situation", ["tensor_parallel", "sources_dead", "rank_dead", "server_gone", "unknown", "hostile"]
)
async def test_ascii_leaves_no_other_character(situation: str) -> None:
    async with running(situation, (160, 50), ascii=True, colours="none") as run:
        for keys in (("3",), ("5",), ("4", "plus", "plus", "plus", "enter", "enter"), ("question_mark",)):
            await run.press(*keys)
            views = run.app.screen.query(LineView)
            shown = [segment.text for view in views for y in range(len(view.lines)) for segment in view.render_line(y)]
            assert "".join(shown).isascii()


async def test_unknown_is_a_dash_and_never_a_zero() -> None:
    async with running("unknown", (160, 50)) as run:
        assert "– tok/s · – running · – queued · decode – " in run.text("header")
        assert all("0" not in label.replace("PP0", "") for label in run.labels()[1:])
        assert run.labels()[1].split() == ["▸", "PP0", "–", "–", "–", "–", "–", "~"]


async def test_a_dead_rank_is_grey_and_says_how_it_ended() -> None:
    async with running("rank_dead") as run:
        assert "✖ exited, pid 4303" in run.labels()[4]


async def test_dead_sources_are_notes_and_the_rest_lives_on() -> None:
    async with running("sources_dead", (160, 50)) as run:
        assert "gpu stalled 12 s" in run.text("strip")
        assert "connection refused" in run.text("strip")
        assert "pipeline.serial" in run.text("strip")


async def test_hostile_text_is_shown_as_text() -> None:
    async with running("hostile", (160, 50)) as run:
        await run.press("f")
        text = run.text()
        assert "[red]evil[/]" in text
        assert "\x1b" not in text
        assert "\u202e" not in text


async def test_only_the_newest_tiles_are_drawn_again() -> None:
    feed = FakeFeed(seconds=3)
    async with running(lambda: feed, (160, 50)) as run:
        await run.pilot.pause(0.3)
        drawn: list[object] = []
        show = LineView.refresh

        def refresh(view: LineView, *regions: object, **options: object) -> LineView:
            if regions:
                drawn.append(view)
            return show(view, *regions, **options)  # type: ignore[arg-type]

        with patch.object(LineView, "refresh", refresh):
            feed.at_ns += 500 * MS
            run.app.paint(figures=False)
        assert 1 <= len(drawn) <= 3  # ten columns of 50 ms touch two or three tiles of eight
        assert all(type(view).__name__ == "Tile" for view in drawn)


def test_the_table_has_no_key_twice_and_becomes_markdown() -> None:
    keys = [name for key in KEYS for name in key.keys]
    assert len(keys) == len(set(keys))
    assert as_markdown().count("\n") == len(KEYS) + 1
