"""A list that scrolls inside the lower area: fixed head, items of one or more rows, one of them chosen."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from ppscope.widgets.lines import LineView
from ppscope.widgets.look import Look
from ppscope.widgets.text import Line


class Item(NamedTuple):
    """Rows that belong together. `key` names the item for ever, `copy` is its plain text for the clipboard."""

    lines: tuple[Line, ...]
    key: Hashable = None
    copy: str = ""


class Listing(NamedTuple):
    """What a panel shows: `head` stays, `items` scroll."""

    items: tuple[Item, ...]
    head: tuple[Line, ...] = ()

    @property
    def text(self) -> str:
        """All items' plain text."""
        return "\n".join(item.copy for item in self.items if item.copy)


class Pane(LineView):
    """Draws a Listing; the chosen item follows its key when the items change."""

    DEFAULT_CSS = "Pane { height: 1fr; }"

    def __init__(self, look: Look, id: str | None = None) -> None:
        super().__init__(look, id=id)
        self.listing = Listing(())
        self.chosen = 0
        self.top = 0
        self.focused = False

    @property
    def item(self) -> Item | None:
        """The chosen item."""
        items = self.listing.items
        return items[self.chosen] if self.chosen < len(items) else None

    @property
    def place(self) -> str:
        """`3/12`, empty while everything fits."""
        rows = sum(len(item.lines) for item in self.listing.items)
        if rows <= self._room():
            return ""
        return f"{self.chosen + 1}/{len(self.listing.items)}"

    def show_listing(self, listing: Listing, *, focused: bool, reset: bool = False) -> None:
        """Draw another listing; `reset` starts at its top."""
        before = self.item
        self.listing = listing
        self.focused = focused
        if reset:
            self.chosen = self.top = 0
        elif before is not None and before.key is not None and (self.item is None or self.item.key != before.key):
            self.chosen = next((i for i, item in enumerate(listing.items) if item.key == before.key), self.chosen)
        self.chosen = max(0, min(self.chosen, len(listing.items) - 1))
        self._draw()

    def move(self, by: int) -> None:
        """Choose another item, once the chosen one is shown to its end, or up to its beginning."""
        if not self._scroll_within(by):
            self.choose(self.chosen + by)

    def page(self, by: int) -> None:
        """Move by what fits."""
        if not self._scroll_within(by * max(1, self._room() - 1)):
            rows = max((len(item.lines) for item in self.listing.items), default=1)
            self.choose(self.chosen + by * max(1, self._room() // max(1, rows)))

    def choose(self, index: int) -> None:
        """Choose an item, the nearest where there are not so many."""
        self.chosen = max(0, min(index, len(self.listing.items) - 1))
        self._draw()

    def _scroll_within(self, by: int) -> bool:
        """Show the next rows of a chosen item that is taller than the room; False where there are none."""
        first, last = self._rows_of_chosen()
        if last - first <= self._room():
            return False
        top = max(first, min(self.top + by, last - self._room()))
        moved, self.top = top != self.top, top
        self._draw()
        return moved

    def _rows_of_chosen(self) -> tuple[int, int]:
        """Its first row, and the one behind its last, among the rows of all items."""
        heights = [len(item.lines) for item in self.listing.items[: self.chosen + 1]]
        return sum(heights[:-1]), sum(heights)

    def item_at(self, y: int) -> int | None:
        """Index of the item drawn in a row."""
        row = y - len(self.listing.head) + self.top
        if y < len(self.listing.head):
            return None
        for index, item in enumerate(self.listing.items):
            row -= len(item.lines)
            if row < 0:
                return index
        return None

    def _room(self) -> int:
        return max(1, self.size.height - len(self.listing.head))

    def _draw(self) -> None:
        rows = [line for item in self.listing.items for line in item.lines]
        first, last = self._rows_of_chosen()
        room = self._room()
        # All of the chosen item is shown, or where it is taller than the room nothing else.
        least, most = sorted((first, last - room))
        self.top = max(least, min(self.top, most, max(0, len(rows) - room)))
        head = len(self.listing.head)
        over = {}
        if self.focused and self.listing.items:
            over = {head + row - self.top: "select" for row in range(first, last) if 0 <= row - self.top < room}
        self.show([*self.listing.head, *rows[self.top : self.top + room]], over)
