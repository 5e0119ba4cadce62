"""From the state to lines: which widget shows what, and how the rows of the terminal are shared out."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from textual.containers import Horizontal

from ppscope.app_drill import LaunchLevel, Level, SourceLevel
from ppscope.app_lanes import NOTHING
from ppscope.app_state import SECOND, State
from ppscope.views import LaunchRow
from ppscope.widgets.cells import SPAN_COLUMN_NS, lane_line
from ppscope.widgets.chrome import PANELS, axis, crumbs_line, footer_line, legend_line, tabs_line
from ppscope.widgets.gantt import Gantt, Labels
from ppscope.widgets.header import burst_line, ended_line, gone_line, load_line, strip_lines, title_line
from ppscope.widgets.lines import LineView
from ppscope.widgets.listing import Listing, Pane
from ppscope.widgets.look import Look
from ppscope.widgets.panel_findings import findings_listing
from ppscope.widgets.panel_gpus import gpus_listing
from ppscope.widgets.panel_launches import launches_listing
from ppscope.widgets.panel_server import server_listing
from ppscope.widgets.panel_stacks import StackKey, stacks_listing
from ppscope.widgets.rows import head_line, label_line, label_widths, rank_name
from ppscope.widgets.text import Line, Span, duration, elapsed

if TYPE_CHECKING:
    from ppscope.app_canvas import Canvas


JUDGED_NS = 5_000_000_000
"""A finding has to last before it is said: until then its absence says nothing."""


class Painter:
    """Fills the widgets of the app from its state."""

    def __init__(self, state: State, able: Collection[str]) -> None:
        self.state = state
        self.able = able
        self.reset_pane = False

    # Sharing out the rows.

    def paint(self, app: Canvas, *, figures: bool, message: Span | None) -> None:
        """Draw what changed; without `figures` only axis and lanes."""
        state = self.state
        width, height = app.size
        strip = self._strip(width, height)
        moved = self._lay_out(app, width, height, len(strip))
        if figures or moved:
            header, title = state.screen.header, self._state_span()
            app.query_one("#header", LineView).show(
                [title_line(header, title, width), load_line(header, state.screen.occupancy, width)]
            )
            app.query_one("#strip", LineView).show(strip)
            app.query_one(Labels).draw(self._labels(width))
            provenance = set(state.lanes.provenance.values())
            single = state.window.column_ns <= SPAN_COLUMN_NS
            legend = legend_line(app.look, state.seen, provenance, header.other_share, width, single)
            app.query_one("#legend", LineView).show([legend])
        self._paint_lanes(app)
        if figures or moved or self.reset_pane:
            self._paint_pane(app, width)
        note = self._footer_note(message)
        app.query_one("#footer", LineView).show([footer_line(self.able, note, width)])

    def _lay_out(self, app: Canvas, width: int, height: int, strip: int) -> bool:
        state = self.state
        least = 7 if height < 30 else 12 if height < 45 else 16
        tall = height >= 36
        app.query_one("#main").set_class(tall, "tall")
        room = height - 2 - strip - 4 - least - 2 * tall
        rows = max(3, min(len(state.rows), room))
        lanes = app.query_one("#lanes", Horizontal)
        moved = False
        for widget, value in ((app.query_one("#strip"), strip), (lanes, rows + 1)):
            if widget.styles.height is None or widget.styles.height.value != value:
                widget.styles.height = value
                moved = True
        app.query_one("#strip").display = strip > 0
        for widget in (lanes, app.query_one("#legend")):
            if widget.display == state.enlarged:
                widget.display = not state.enlarged
                moved = True
        widths = label_widths(width)
        moved = app.query_one(Labels).fit(widths) or moved
        columns = app.query_one(Gantt).fit(width - sum(widths))
        if columns != state.window.columns or rows != state.visible:
            state.window.resize(columns, state.extent)
            state.show_rows(rows)
            state.fetch()
            moved = True
        state.window.resize(columns, state.extent)
        if moved:
            # Panes know their height only after the new layout.
            app.call_after_refresh(self._paint_pane, app, width)
        return moved

    # Top.

    def _strip(self, width: int, height: int) -> list[Line]:
        state = self.state
        ended, header = state.feed.ended(), state.present.header
        banner = None
        if state.collector_ended:
            banner = ended_line(header, ended or "", width)
        elif state.gone:
            banner = gone_line(header, ended, width, state.feed.live)
        rows = 3 if height < 40 else 5
        lines = strip_lines(state.screen.header, state.screen.findings, banner, state.now_ns, width, rows)
        burst = burst_line(state.present.burst, state.present.now_ns, width)
        return lines if burst is None else [burst, *lines[: rows - 1]]

    def _state_span(self) -> Span:
        state = self.state
        header = state.screen.header
        frozen = f"❚❚ frozen {elapsed(max(0, state.feed.now_ns() - state.now_ns))}" if state.frozen else ""
        if state.gone:
            return f"■ {'ended' if state.collector_ended else 'gone'} {frozen}".rstrip(), "bad bold"
        if frozen:
            return frozen, "warn bold"
        oldest, newest = state.extent
        back = max(0, state.now_ns - state.window.end_ns)
        if not state.window.live and (state.feed.live or back >= SECOND):
            return self._scrolled_back(back), "warn bold"
        if not state.feed.live:
            length = newest - oldest
            return f"▶ recording of {duration(length) if length < 100 * SECOND else elapsed(length)}", "accent bold"
        if header.state in {"loading", "idle"}:
            return f"● {header.state}", "accent bold"
        return "● live", "good bold"

    def _scrolled_back(self, back: int) -> str:
        """How far the lanes are back, and of when the figures are: a long recording's follow once the lanes rest."""
        state = self.state
        figures = max(0, state.now_ns - state.screen.now_ns)
        if state.feed.live or figures < SECOND:
            return f"◂ lanes {elapsed(back)} back, figures of {'now' if state.feed.live else 'its end'}"
        if abs(figures - back) < 2 * SECOND:
            return f"◂ {elapsed(back)} before the end"
        return f"◂ lanes {elapsed(back)} back, figures {elapsed(figures)}"

    # Lanes.

    def _labels(self, width: int) -> list[Line]:
        state = self.state
        several_dp = len({stage.dp for stage in state.screen.stages}) > 1
        lines = [head_line(width)]
        traced = self._burst_is_shown()
        for place, row in enumerate(state.shown_rows()):
            index = state.top + place
            provenance = state.lanes.provenance.get((row.rank.key, row.lane)) if row.lane else None
            cursor = index == state.cursor
            line = label_line(row, width, cursor=cursor, several_dp=several_dp, provenance=provenance, traced=traced)
            above = place == 0 and state.top > 0
            below = place == state.visible - 1 and index < len(state.rows) - 1
            if (above or below) and not cursor:
                line = (("↑ " if above else "↓ ", "accent"), *line[1:])
            lines.append(line)
        return lines

    def _burst_is_shown(self) -> bool:
        """Whether the newest burst lies in the window: busy shares are its own, not the present's."""
        burst, window = self.state.screen.burst, self.state.window
        if burst is None or burst.start_ns is None or burst.end_ns is None:
            return True
        return burst.start_ns < window.end_ns and burst.end_ns > window.start_ns

    def _paint_lanes(self, app: Canvas) -> None:
        state = self.state
        window = state.window
        chosen = state.chosen_ns()
        column = None if chosen is None else (chosen - window.start_ns) // window.column_ns
        now = window.now_column(state.now_ns) if state.feed.live else None
        top = axis(window.start_ns, window.column_ns, window.columns, state.origin_ns, now, column)
        lanes: list[list[Span]] = []
        for row in state.shown_rows():
            cells = state.lanes.cells.get((row.rank.key, row.lane)) if row.lane else None
            work = next((index for index, _ in row.rank.phases if _is_work(app.look, index)), None)
            lanes.append(lane_line(cells or [NOTHING] * window.columns, window.column_ns, app.look, work))
        app.query_one(Gantt).draw(top, lanes)

    # Lower area.

    def _paint_pane(self, app: Canvas, width: int) -> None:
        state = self.state
        pane = app.query_one("#pane", Pane)
        listing = self._listing(width)
        reset, self.reset_pane = self.reset_pane, False
        pane.show_listing(listing, focused=state.in_panel, reset=reset)
        if state.levels:
            crumbs = [PANELS[state.panel - 1]] if isinstance(state.levels[0], SourceLevel) else []
            crumbs += [level.crumb(state.feed) for level in state.levels]
            tabs = crumbs_line(crumbs, pane.place, width)
        else:
            tabs = tabs_line(state.panel, state.in_panel, pane.place, width)
        app.query_one("#tabs", LineView).show([tabs])

    def _listing(self, width: int) -> Listing:
        state = self.state
        screen = state.screen
        if state.levels:
            return state.levels[-1].listing(state.where(width))
        if state.panel == 1:
            long_enough = state.now_ns - state.origin_ns >= JUDGED_NS
            seen = long_enough and any(stage.phases for stage in screen.stages)
            return findings_listing(screen.findings, screen.header.state, width, seen)
        if state.panel == 2:
            read = screen.burst is not None and screen.burst.state == "done"
            return launches_listing(screen.launches, "burst" in self.able, width, state.filter, state.kept, read)
        if state.panel == 3:
            rank = state.rank
            threads = [] if rank is None else state.stacks(rank)
            return stacks_listing(threads, "–" if rank is None else rank_name(rank), state.closed, state.filter, width)
        if state.panel == 4:
            return gpus_listing(screen.gpus, width)
        return server_listing(screen.settings, screen.header.load, state.history, state.filter, width)

    def below(self, key: object) -> Level | None:
        """The level under an item of a panel: a stack's leaf has a source line, a launch has all that is known of it."""
        if isinstance(key, StackKey) and key.leaf and self.state.rank is not None:
            return SourceLevel(self.state.rank, key.frame)
        return LaunchLevel(key) if isinstance(key, LaunchRow) else None

    def copy_text(self, pane: Pane) -> str:
        """What `y` copies: the chosen item, or without one the whole list."""
        item = pane.item
        if item is not None and item.copy:
            return item.copy
        return pane.listing.text

    def _footer_note(self, message: Span | None) -> Span | None:
        if message is None and self.state.filter:
            where = "" if self.state.stages_match else "   no stage has it, stacks or launches may"
            return f"filter: {self.state.filter}{where}   / change   Esc clear", "warn"
        return message


def _is_work(look: Look, index: int) -> bool:
    phase = look.phase(index)
    return phase is not None and phase.kind == "work"
