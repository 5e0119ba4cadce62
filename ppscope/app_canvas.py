"""The screen of the App: it polls the feed, lays the widgets out and paints them."""

from __future__ import annotations

import os

from textual import constants, events
from textual.app import App, ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Input

from ppscope import app_burst, app_snapshot, app_suspend
from ppscope.app_paint import Painter
from ppscope.app_state import State
from ppscope.app_theme import CSS, THEMES
from ppscope.app_thrift import ThriftyDriver
from ppscope.feed import Feed
from ppscope.widgets.gantt import Gantt, Labels
from ppscope.widgets.lines import LineView
from ppscope.widgets.listing import Pane
from ppscope.widgets.look import Look
from ppscope.widgets.text import Span

TICK_S = 0.1
MESSAGE_TICKS = 30
SMALLEST = (80, 24)


def too_small(width: int) -> str:
    """What is said instead of the screen: the size it needs, whatever else fits."""
    size = f"{SMALLEST[0]}×{SMALLEST[1]}"
    texts = (f"terminal too small: {size} needed", f"{size} needed", size)
    return next((text for text in texts if len(text) <= width), size)


class Canvas(App[None]):
    """Lays out the widgets and brings them up to date from one feed.

    `colours` is `full`, `ansi` or `none`; None asks the terminal and NO_COLOR. The caller closes the feed, and lets
    `save_snapshot` finish.
    """

    CSS = CSS
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
        save_snapshot: app_snapshot.Saves | None = None,
    ) -> None:
        if colours is None:
            colours = "none" if os.environ.get("NO_COLOR") else "ansi" if constants.COLOR_SYSTEM == "standard" else None
        super().__init__(driver_class=ThriftyDriver, ansi_color=True if colours in {"ansi", "none"} else None)
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
        if not ascii:
            self.able.add("palette")
        for theme in THEMES:
            self.register_theme(theme)
        self.animation_level = "none"
        self._set_theme(colours, dark)
        self.look = Look(colours=colours, dark=dark, ascii=ascii, phases=feed.phases())
        self.state = State(feed)
        self._bursts = app_burst.BurstFollower()
        self.keeps_burst = False
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
        """Draw what is known, which spares Textual's first frame from being an empty one, and start polling."""
        self.query_one("#filter", Input).cursor_blink = False
        self.set_interval(TICK_S, self._tick)
        self.app_resume_signal.subscribe(self, lambda _: app_suspend.redraw(self))
        self.paint()

    def on_resize(self, event: events.Resize) -> None:
        """Lay out for the new size."""
        self.call_after_refresh(self.paint)

    def _tick(self) -> None:
        if not self.screen_stack:
            return  # the last tick of an app that is closing
        if self.feed.poll() and not self.feed.live:
            self.state.lanes.forget()
        app_burst.follow(self)
        app_snapshot.follow(self)
        self.state.hold_stacks()
        self._ticks += 1
        if self._message and self._ticks >= self._message_until:
            self._message = None
            self.paint()
        elif self._ticks % self._every == 0 and len(self.screen_stack) == 1:
            # Figures change once a second; only the lanes go at the full rate.
            self.paint(figures=self._ticks % max(self._every, 10) < self._every)

    @property
    def is_too_small(self) -> bool:
        """Whether one line that says so is all that is shown."""
        return self.size.width < SMALLEST[0] or self.size.height < SMALLEST[1]

    def paint(self, figures: bool = True) -> None:
        """Bring the screen up to date; without `figures` only the lanes."""
        if not self.is_running or self.size.width == 0:
            return
        small = self.is_too_small
        notice = self.query_one("#small", LineView)
        main = self.query_one("#main", Vertical)
        if main.display == small:
            main.display, notice.display = not small, small
            box = self.query_one("#filter", Input)
            if box.display and not small:
                box.focus()  # what is hidden has lost the keys
        if small:
            notice.show([((too_small(self.size.width), "warn"),)])
            return
        self.state.refresh()
        self._bursts.look(self)
        self._update_able()
        self.painter.paint(self, figures=figures, message=self._message)

    def _update_able(self) -> None:
        state = self.state
        if self.feed.burst() is None or state.gone:
            self.able.discard("burst")
        else:
            self.able.add("burst")
        if state.gone and not state.collector_ended and state.present.header.candidates:
            self.able.add("candidates")
        else:
            self.able.discard("candidates")

    def say(self, text: str, role: str = "accent") -> None:
        """Show a line in place of the footer for three seconds."""
        self._message = (text, role)
        self._message_until = self._ticks + MESSAGE_TICKS
        self.paint()
