"""The Textual App: it polls the feed, lays the widgets out, and turns keys into changes of the state."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from textual import constants, events
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import Input

from ppscope import app_burst
from ppscope.app_drill import CandidatesLevel
from ppscope.app_paint import Painter
from ppscope.app_state import State
from ppscope.app_theme import CSS, THEMES
from ppscope.feed import Feed
from ppscope.keys import KEYS
from ppscope.records import Attach
from ppscope.widgets.gantt import Gantt, Labels
from ppscope.widgets.help import HelpScreen
from ppscope.widgets.lines import LineView
from ppscope.widgets.listing import Pane
from ppscope.widgets.look import Look
from ppscope.widgets.panel_stacks import StackKey
from ppscope.widgets.text import Span

TICK_S = 0.1
MESSAGE_TICKS = 30
SMALLEST = (80, 24)


def _bindings() -> list[BindingType]:
    return [
        Binding(
            ",".join(key.keys),
            key.action,
            key.help,
            show=False,
            priority=key.action in {"interrupt", "suspend_process"},
        )
        for key in KEYS
        if key.action not in {"switch", "command_palette"}
    ]


class PpscopeApp(App[None]):
    """The live view of one feed; it ends with return code 0, or 130 when interrupted.

    `colours` is `full`, `ansi` or `none`; None asks the terminal and NO_COLOR. `save_snapshot` writes a snapshot and says where, or
    raises OSError. The caller closes the feed.
    """

    CSS = CSS
    BINDINGS = _bindings()
    COMMAND_PALETTE_BINDING = "ctrl+p"
    ALLOW_SELECT = False
    AUTO_FOCUS = None

    def __init__(
        self,
        feed: Feed,
        *,
        ascii: bool = False,
        refresh_hz: float = 2.0,
        colours: str | None = None,
        dark: bool = True,
        save_snapshot: Callable[[], str] | None = None,
    ) -> None:
        if colours is None:
            colours = "none" if os.environ.get("NO_COLOR") else "ansi" if constants.COLOR_SYSTEM == "standard" else None
        super().__init__(ansi_color=True if colours in {"ansi", "none"} else None)
        if colours is None:
            colours = "full" if self.console.color_system in {"truecolor", "256"} else "ansi"
        if ascii:
            # Textual's palette draws borders and icons outside ASCII; the help lists the same.
            self.use_command_palette = False
        self.feed = feed
        self.save_snapshot = save_snapshot
        self.able = {
            name
            for name, there in (("burst", feed.burst() is not None), ("snapshot", save_snapshot is not None))
            if there
        }
        for theme in THEMES:
            self.register_theme(theme)
        self.animation_level = "none"
        self._set_theme(colours, dark)
        self.look = Look(colours=colours, dark=dark, ascii=ascii, phases=feed.phases())
        self.state = State(feed)
        self._bursts = app_burst.BurstFollower()
        self.painter = Painter(self.state, self.able)
        self._every = max(1, round(1 / TICK_S / refresh_hz))
        self._ticks = 0
        self._message: Span | None = None
        self._message_until = 0

    def _set_theme(self, colours: str, dark: bool) -> None:
        if colours == "full":
            self.theme = "ppscope-dark" if dark else "ppscope-light"
        else:
            self.ansi_color = True
            self.theme = "ansi-dark" if dark else "ansi-light"

    def compose(self) -> ComposeResult:
        """Header, strip, lanes, legend, tabs, panel, footer."""
        with Vertical(id="main"):
            yield LineView(self.look, id="header")
            yield LineView(self.look, id="strip")
            with Horizontal(id="lanes"):
                yield Labels(self.look, id="labels")
                yield Gantt(self.look, id="gantt")
            yield LineView(self.look, id="legend")
            yield LineView(self.look, id="tabs")
            yield Pane(self.look, id="pane")
            yield Input(placeholder="filter stages, ranks, stacks, settings", id="filter", select_on_focus=False)
            yield LineView(self.look, id="footer")
        yield LineView(self.look, id="small")

    def on_mount(self) -> None:
        """Start polling."""
        self.query_one("#filter", Input).cursor_blink = False
        self.set_interval(TICK_S, self._tick)

    def on_resize(self, event: events.Resize) -> None:
        """Lay out for the new size."""
        self.call_after_refresh(self.paint)

    # Time.

    def _tick(self) -> None:
        self.feed.poll()
        app_burst.follow(self)
        self._ticks += 1
        if self._message and self._ticks >= self._message_until:
            self._message = None
            self.paint()
        elif self._ticks % self._every == 0 and len(self.screen_stack) == 1:
            # Figures change once a second; only the lanes go at the full rate.
            self.paint(figures=self._ticks % max(self._every, 10) < self._every)

    def paint(self, figures: bool = True) -> None:
        """Bring the screen up to date; without `figures` only the lanes."""
        if not self.is_running or self.size.width == 0:
            return
        small = self.size.width < SMALLEST[0] or self.size.height < SMALLEST[1]
        notice = self.query_one("#small", LineView)
        main = self.query_one("#main", Vertical)
        if main.display == small:
            main.display, notice.display = not small, small
        if small:
            notice.show([((f"terminal too small: {SMALLEST[0]}×{SMALLEST[1]} needed", "warn"),)])
            return
        self.state.refresh()
        self._bursts.look(self)
        self._update_able()
        self.painter.paint(self, figures=figures, message=self._message)

    def _update_able(self) -> None:
        gone = self.state.screen.header.state == "gone" or self.feed.ended() is not None
        if self.feed.burst() is None or gone:
            self.able.discard("burst")
        else:
            self.able.add("burst")
        if gone and self.state.screen.header.candidates:
            self.able.add("candidates")
        else:
            self.able.discard("candidates")

    def say(self, text: str, role: str = "accent") -> None:
        """Show a line in place of the footer for three seconds."""
        self._message = (text, role)
        self._message_until = self._ticks + MESSAGE_TICKS
        self.paint()

    # Keys.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave out what this session cannot do."""
        needs = next((key.needs for key in KEYS if key.action == action), "")
        return not needs or needs in self.able

    @property
    def _pane(self) -> Pane:
        return self.query_one("#pane", Pane)

    def _move(self, by: int) -> None:
        if self.state.in_panel:
            self._pane.move(by)
        else:
            self.state.move(by)
        self.paint()

    def action_up(self) -> None:
        """One row up."""
        self._move(-1)

    def action_down(self) -> None:
        """One row down."""
        self._move(1)

    def action_page_up(self) -> None:
        """A page up."""
        self._page(-1)

    def action_page_down(self) -> None:
        """A page down."""
        self._page(1)

    def _page(self, by: int) -> None:
        if self.state.in_panel:
            self._pane.page(by)
        else:
            self.state.move(by * self.state.visible)
        self.paint()

    def action_focus_next(self) -> None:
        """Tab: between the stages and the panel."""
        self.action_switch()

    def action_focus_previous(self) -> None:
        """Shift-Tab: the same."""
        self.action_switch()

    def action_switch(self) -> None:
        """Between the stages and the panel."""
        self.state.in_panel = not self.state.in_panel
        self.paint()

    def action_deeper(self) -> None:
        """Stage, rank, span, stack, source line."""
        state, item, depth = self.state, self._pane.item, len(self.state.levels)
        if not state.in_panel:
            state.deeper()
        elif item is not None and state.levels:
            level = state.levels[-1]
            if isinstance(level, CandidatesLevel):
                state.levels.clear()
                state.in_panel = False
                if isinstance(item.key, int):
                    self._attach_to(item.key)
            elif (below := level.deeper(item, state.where(self.size.width))) is not None:
                state.levels.append(below)
        elif item is not None:
            self._deeper_in_panel(item.key)
        self.painter.reset_pane = len(state.levels) != depth
        self.paint()

    def _deeper_in_panel(self, key: object) -> None:
        level = self.painter.below(key)
        if level is not None:
            self.state.levels.append(level)
        elif isinstance(key, StackKey) and key.path:
            self.state.toggle_closed(key)

    def action_leave(self) -> None:
        """One level up."""
        self.state.back()
        self.painter.reset_pane = True
        self.paint()

    def action_earlier(self) -> None:
        """A quarter of the window back."""
        self.state.window.pan(-1, self.state.extent)
        self.paint()

    def action_later(self) -> None:
        """A quarter of the window forward."""
        self.state.window.pan(1, self.state.extent)
        self.paint()

    def action_oldest(self) -> None:
        """The oldest instant kept."""
        self.state.window.to_oldest(self.state.extent)
        self.paint()

    def action_zoom_in(self) -> None:
        """Narrower columns."""
        self.state.window.change_zoom(1, self.state.extent)
        self.paint()

    def action_zoom_out(self) -> None:
        """Wider columns."""
        self.state.window.change_zoom(-1, self.state.extent)
        self.paint()

    def action_live(self) -> None:
        """Back to now."""
        self.state.to_live()
        self.paint()

    def action_freeze(self) -> None:
        """Hold what is shown."""
        self.state.toggle_freeze()
        self.paint()

    def action_panel(self, number: int) -> None:
        """Open a panel; the open one once more takes the keys."""
        if self.state.panel == number and not self.state.levels:
            self.state.in_panel = not self.state.in_panel
        self.state.levels.clear()
        self.painter.reset_pane = self.state.panel != number
        self.state.panel = number
        self.paint()

    def action_findings(self) -> None:
        """Open the findings and put the keys there."""
        self.state.levels.clear()
        self.painter.reset_pane = True
        self.state.panel, self.state.in_panel = 1, True
        self.paint()

    def action_enlarge(self) -> None:
        """The panel in full height, and back."""
        self.state.enlarged = not self.state.enlarged
        self.paint()

    def action_filter(self) -> None:
        """Ask for a filter."""
        box = self.query_one("#filter", Input)
        box.value = self.state.filter
        box.display = True
        box.focus()
        self.query_one("#footer", LineView).display = False

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while typing."""
        self.state.set_filter(event.value.strip())
        self.paint()

    def on_input_submitted(self) -> None:
        """Keep the filter."""
        self._close_filter()

    def on_key(self, event: events.Key) -> None:
        """Esc in the filter clears it."""
        if event.key == "escape" and self.query_one("#filter", Input).has_focus:
            event.stop()
            event.prevent_default()
            self.state.set_filter("")
            self._close_filter()

    def _close_filter(self) -> None:
        self.screen.set_focus(None)
        self.query_one("#filter", Input).display = False
        self.query_one("#footer", LineView).display = True
        self.paint()

    def action_copy(self) -> None:
        """Copy the chosen finding or stack."""
        text = self.painter.copy_text(self._pane)
        if not text:
            self.say("nothing to copy here", "dim")
            return
        self.copy_to_clipboard(text)
        rows = text.count("\n") + 1
        self.say(f"copied {rows} line{'s' if rows > 1 else ''}")

    def action_burst(self) -> None:
        """Ask for a profile burst."""
        app_burst.ask(self)

    def action_snapshot(self) -> None:
        """Save a snapshot."""
        if self.save_snapshot is not None:
            try:
                self.say(f"snapshot: {self.save_snapshot()}")
            except OSError as error:
                self.say(f"no snapshot: {error}", "bad")

    def action_attach(self) -> None:
        """Attach to another server, once this one is gone."""
        candidates = self.state.screen.header.candidates
        if len(candidates) == 1:
            self._attach_to(candidates[0][0])
        elif candidates:
            self.state.levels = [CandidatesLevel(candidates)]
            self.state.in_panel = self.painter.reset_pane = True
            self.paint()

    def _attach_to(self, pid: int) -> None:
        self.feed.send(Attach(pid))
        self.say(f"attaching to {pid}")

    def action_light(self) -> None:
        """Light or dark."""
        look = self.look
        self.look = Look(colours=look.colours, dark=not look.dark, ascii=look.ascii, phases=look.phases)
        self._set_theme(look.colours, self.look.dark)
        self.query_one(Gantt).restyle(self.look)
        for view in self.query(LineView):
            view.restyle(self.look)
        self.paint()

    def action_help(self) -> None:
        """All keys and glyphs."""
        self.push_screen(HelpScreen(self.look, self.able))

    def action_interrupt(self) -> None:
        """Ctrl-C."""
        self.exit(return_code=130)

    async def action_quit(self) -> None:
        """End with return code 0."""
        self.exit()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The command palette: every key of the table."""
        for key in KEYS:
            if key.action not in {"up", "down", "page_up", "page_down", "interrupt", "command_palette"} and (
                not key.needs or key.needs in self.able
            ):
                yield SystemCommand(f"{key.help}", f"key {key.show}", _runner(self, key.action))

    # Mouse.

    def on_line_view_pressed(self, event: LineView.Pressed) -> None:
        """A press chooses a row, an item or a tab."""
        self.painter.pressed(self, event)

    def on_line_view_wheeled(self, event: LineView.Wheeled) -> None:
        """The wheel scrolls what is under it."""
        if event.view.id == "pane":
            self._pane.move(event.by)
        else:
            self.state.move(1 if event.by > 0 else -1)
        self.paint()


def _runner(app: PpscopeApp, action: str) -> Callable[[], object]:
    return lambda: app.call_later(app.run_action, action)
