"""The Textual App: it turns keys into changes of what is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from textual import events
from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Input

from ppscope import app_burst, app_snapshot, app_suspend
from ppscope.app_canvas import Canvas
from ppscope.app_drill import CandidatesLevel
from ppscope.keys import KEYS
from ppscope.records import Attach
from ppscope.widgets.chrome import PANELS
from ppscope.widgets.gantt import Gantt
from ppscope.widgets.header import begin_anew
from ppscope.widgets.help import HelpScreen
from ppscope.widgets.lines import LineView
from ppscope.widgets.listing import Pane
from ppscope.widgets.look import Look
from ppscope.widgets.panel_stacks import StackKey

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


class PpscopeApp(Canvas):
    """The live view of one feed, with its keys; it ends with return code 0, or 130 when interrupted. See Canvas."""

    BINDINGS = _bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave out what this session cannot do."""
        # `a` is always heard, to say why it does nothing yet.
        needs = next((key.needs for key in KEYS if key.action == action != "attach"), "")
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
        """Stage, rank, span, stack, the callers of a line; in the panel what is chosen there."""
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
        """One level up; out of a filter that is shown without the keys, it is the filter."""
        if self.query_one("#filter", Input).display:
            self._clear_filter()
            return
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
            self._clear_filter()

    def _clear_filter(self) -> None:
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
        app_snapshot.save(self)

    def action_attach(self) -> None:
        """Attach to another server, once this one is gone."""
        header = self.state.present.header
        candidates = header.candidates
        if self.state.collector_ended:
            self.say(begin_anew(header), "bad")
        elif len(candidates) == 1:
            self._attach_to(candidates[0][0])
        elif candidates:
            self.state.levels = [CandidatesLevel(candidates)]
            self.state.in_panel = self.painter.reset_pane = True
            self.paint()
        elif not self.feed.live:
            self.say("a recording has nothing to attach to", "dim")
        elif self.state.gone:
            self.say("no other server was found", "dim")
        else:
            self.say("the server is still there: a attaches to another one once it is gone", "dim")

    def _attach_to(self, pid: int) -> None:
        if self.state.collector_ended:
            self.say(begin_anew(self.state.present.header), "bad")
            return
        self.feed.send(Attach(pid))
        self.state.to_live()
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

    def action_suspend_process(self) -> None:
        """Ctrl-Z."""
        app_suspend.suspend(self)

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
        state, view = self.state, event.view
        if view.has_class("label") and event.y > 0:
            state.in_panel = False
            state.choose(state.top + event.y - 1)
        elif isinstance(view, Pane) and view.id == "pane":  # not a question or the help, which lie over it
            index = view.item_at(event.y)
            state.in_panel = True
            if index is not None:
                view.choose(index)
        elif view.id == "tabs" and not state.levels:
            at = 1
            for number, name in enumerate(PANELS, start=1):
                if at <= event.x < at + len(name) + 5:
                    self.action_panel(number)
                    return
                at += len(name) + 5
        elif view.id == "strip":
            self.action_findings()
            return
        self.paint()

    def on_line_view_wheeled(self, event: LineView.Wheeled) -> None:
        """The wheel scrolls what is under it."""
        if event.view.id == "pane":
            self._pane.move(event.by)
        else:
            self.state.move(1 if event.by > 0 else -1)
        self.paint()


def _runner(app: PpscopeApp, action: str) -> Callable[[], object]:
    return lambda: app.call_later(app.run_action, action)
