"""A screen of text over the others: it scrolls by rows, and its last line says where one is."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from ppscope.widgets.lines import LineView
from ppscope.widgets.listing import Pane
from ppscope.widgets.look import Look

Result = TypeVar("Result")


class TextScreen(ModalScreen[Result]):
    """What it says is its heirs'; keys, wheel and layout are one."""

    DEFAULT_CSS = "TextScreen { background: $background; } TextScreen TextPane { height: 1fr; } TextScreen #text-foot { height: 1; }"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "app.quit", show=False),
        Binding("down", "scroll(1)", show=False),
        Binding("up", "scroll(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("home", "page(-1000)", show=False),
        Binding("end", "page(1000)", show=False),
    ]

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.look = look
        self.pane = TextPane(look)
        self.foot = LineView(look, id="text-foot")

    def compose(self) -> ComposeResult:
        """The text, and where in it one is."""
        yield self.pane
        yield self.foot

    def on_resize(self) -> None:
        """Lay the text out for the new width."""
        self.call_after_refresh(self.fill)

    @abstractmethod
    def fill(self) -> None:
        """Show the text, and where in it one is."""

    @abstractmethod
    def tell(self) -> None:
        """Show where in the text one is."""

    def action_scroll(self, by: int) -> None:
        """Scroll by rows."""
        self.pane.scroll_rows(by)
        self.tell()

    def action_page(self, by: int) -> None:
        """Scroll by what fits, but for one row."""
        self.action_scroll(by * self.pane.page_rows)

    def on_line_view_wheeled(self, event: LineView.Wheeled) -> None:
        """Scroll with the mouse."""
        event.stop()
        self.action_scroll(event.by)


class TextPane(Pane):
    """A pane without a cursor: it scrolls by rows."""

    @property
    def page_rows(self) -> int:
        """Rows of a page, one of them from the page before."""
        return max(1, self._room() - 1)

    @property
    def where(self) -> str:
        """`rows 1–40 of 96`, empty while everything fits."""
        rows, room = len(self.listing.items), self._room()
        return f"rows {self.top + 1}–{min(self.top + room, rows)} of {rows}" if rows > room else ""

    @property
    def at_end(self) -> bool:
        """Whether the last row is shown; False before anything was."""
        return 0 < len(self.listing.items) <= self.top + self._room()

    def scroll_rows(self, by: int) -> None:
        """Move the first row."""
        if not self.listing.items:  # a key that came before the first drawing
            return
        room = self._room()
        last = max(0, len(self.listing.items) - room)
        self.top = max(0, min(self.top + by, last))
        self.chosen = min(self.top + (room - 1 if by > 0 else 0), len(self.listing.items) - 1)
        self._draw()
