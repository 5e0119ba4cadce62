"""The one drawing widget: rows of text of which only those that changed are sent to the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.filter import LineFilter
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from ppscope.widgets.look import Look
from ppscope.widgets.text import Line, crop


class LineView(Widget):
    """Rows of lines; `show` compares with what is there and refreshes the rows that differ."""

    DEFAULT_CSS = "LineView { height: auto; }"

    class Pressed(Message):
        """A row was pressed with the mouse."""

        def __init__(self, view: LineView, x: int, y: int) -> None:
            super().__init__()
            self.view = view
            self.x = x
            self.y = y

    class Wheeled(Message):
        """The mouse wheel turned over the widget; `by` is rows, down positive."""

        def __init__(self, view: LineView, by: int) -> None:
            super().__init__()
            self.view = view
            self.by = by

    def __init__(self, look: Look, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.look = look
        self._lines: list[Line] = []
        self._over: dict[int, str] = {}

    @property
    def lines(self) -> Sequence[Line]:
        """What is drawn now, top first."""
        return self._lines

    def restyle(self, look: Look) -> None:
        """Draw the same lines in another look."""
        self.look = look
        self.refresh()

    def show(self, lines: Sequence[Line], over: dict[int, str] | None = None) -> None:
        """Draw these lines; `over` names a role laid over whole rows (the selection)."""
        over = over or {}
        before, self._lines = self._lines, list(lines)
        over_before, self._over = self._over, over
        rows = max(len(before), len(self._lines))
        changed = [
            y
            for y in range(rows)
            if (before[y] if y < len(before) else None) != (self._lines[y] if y < len(self._lines) else None)
            or over_before.get(y) != over.get(y)
        ]
        if changed:
            width = self.size.width
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def render_line(self, y: int) -> Strip:
        """One row as a strip, filled to the widget's width."""
        width = self.size.width
        if y >= len(self._lines):
            return Strip.blank(width, self.look.style(""))
        over = self._over.get(y, "")
        segments = self.look.segments(crop(self._lines[y], width), over)
        return Strip(segments).simplify().adjust_cell_length(width, self.look.style(over))

    def get_line_filters(self) -> Sequence[LineFilter]:
        """None: the look already draws in the terminal's own colours, or in none."""
        return ()

    def on_click(self, event: events.Click) -> None:
        """Tell the app which row was pressed."""
        self.post_message(self.Pressed(self, event.x, event.y))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Tell the app that the wheel turned down."""
        event.stop()
        self.post_message(self.Wheeled(self, 3))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Tell the app that the wheel turned up."""
        event.stop()
        self.post_message(self.Wheeled(self, -3))
