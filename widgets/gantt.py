"""The lanes: narrow tiles side by side, so that new columns cost a few hundred bytes instead of a screen."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal

from ppscope.widgets.cells import TILE, tiles
from ppscope.widgets.lines import LineView
from ppscope.widgets.look import Look
from ppscope.widgets.rows import COLUMNS
from ppscope.widgets.text import Line, Span, part

MOST_TILES = 48


class Tile(LineView):
    """Eight columns of every lane; its first row is the time axis."""

    DEFAULT_CSS = f"Tile {{ width: {TILE}; height: 100%; }}"


class Gantt(Horizontal):
    """Time axis and lanes."""

    DEFAULT_CSS = "Gantt { width: 1fr; height: 100%; }"

    def __init__(self, look: Look, id: str | None = None) -> None:
        super().__init__(id=id)
        self.look = look
        self._tiles: list[Tile] = []
        self._shown = 0

    def restyle(self, look: Look) -> None:
        """Draw the same columns in another look."""
        self.look = look
        for tile in self._tiles:
            tile.restyle(look)

    def fit(self, width: int) -> int:
        """Show as many tiles as fit into `width` cells; returns the columns they have."""
        count = max(1, min(MOST_TILES, width // TILE))
        if count != self._shown:
            new = [Tile(self.look) for _ in range(count - len(self._tiles))]
            self._tiles += new
            if new:
                self.mount(*new)
            for index, tile in enumerate(self._tiles):
                tile.display = index < count
            self._shown = count
        return count * TILE

    def draw(self, axis: Sequence[Span], lanes: Sequence[Sequence[Span]]) -> None:
        """Draw the axis and the lanes, a span a column; only what changed reaches the terminal."""
        rows = [tiles(row, self._shown) for row in (axis, *lanes)]
        for index in range(self._shown):
            self._tiles[index].show([row[index] for row in rows])


class Labels(Horizontal):
    """The label columns, a widget each: a changed figure repaints its own column of one row only."""

    DEFAULT_CSS = "Labels { height: 100%; } Labels LineView { height: 100%; }"

    def __init__(self, look: Look, id: str | None = None) -> None:
        super().__init__(id=id)
        self._views = [LineView(look, classes="label") for _ in range(len(COLUMNS) + 2)]
        self._widths: list[int] = []

    def compose(self) -> ComposeResult:
        """One view a column."""
        yield from self._views

    def fit(self, widths: Sequence[int]) -> bool:
        """Take these column widths; True when they differ from before."""
        if list(widths) == self._widths:
            return False
        self._widths = list(widths)
        for index, view in enumerate(self._views):
            view.display = index < len(widths)
            if index < len(widths):
                view.styles.width = widths[index]
        self.styles.width = sum(widths)
        return True

    def draw(self, lines: Sequence[Line]) -> None:
        """Cut the rows into their columns."""
        at = 0
        for view, width in zip(self._views, self._widths, strict=False):
            view.show([part(line, at, width) for line in lines])
            at += width
