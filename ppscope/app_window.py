"""The window of time that the Gantt shows: it grows to the right and jumps by half a screen when it is full."""

from __future__ import annotations

ZOOM_NS = tuple(int(ms * 1_000_000) for ms in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000))
"""Column widths, nearest first."""


class Window:
    """Columns of `column_ns` each, counted from the node's time zero, `columns` of them from `first` on.

    While `live` it follows the present; panning holds it where it is.
    """

    def __init__(self) -> None:
        self.columns = 40
        self.zoom = ZOOM_NS.index(50_000_000)
        self.first = 0
        self.live = True
        self._placed = False

    @property
    def column_ns(self) -> int:
        """Nanoseconds of one column."""
        return ZOOM_NS[self.zoom]

    @property
    def start_ns(self) -> int:
        """Left edge."""
        return self.first * self.column_ns

    @property
    def end_ns(self) -> int:
        """Right edge, which may lie in the future while the window grows."""
        return (self.first + self.columns) * self.column_ns

    def resize(self, columns: int, extent: tuple[int, int]) -> None:
        """Take another number of columns; a narrow lane area starts with wider columns.

        Fifty milliseconds a column show stages taking turns at 24 tok/s; at a hundred the staircase drowns.
        """
        if columns == self.columns and self._placed:
            return
        if not self._placed and columns < 64:
            self.zoom = ZOOM_NS.index(100_000_000)
        self.columns = columns
        self._place(extent)

    def follow(self, extent: tuple[int, int]) -> None:
        """Move on with the present, when live."""
        newest = extent[1] // self.column_ns
        if not self._placed:
            self._place(extent)
        elif self.live and newest >= self.first + self.columns:
            self.first = newest - self.columns // 2
        elif self.live and newest < self.first:
            self._place(extent)

    def _place(self, extent: tuple[int, int]) -> None:
        """Put the present inside: at three quarters, or further left when nothing older is kept."""
        oldest, newest = extent[0] // self.column_ns, extent[1] // self.column_ns
        if self.live or not self._placed:
            self.first = oldest if newest - oldest < self.columns else newest - self.columns * 3 // 4
        self._placed = True

    def now_column(self, now_ns: int) -> int | None:
        """The column of the present, None when it lies outside."""
        column = now_ns // self.column_ns - self.first
        return column if 0 <= column < self.columns else None

    def pan(self, quarters: int, extent: tuple[int, int]) -> None:
        """Move by quarters of the window and hold there; past the newest instant it is live again."""
        self._hold(self.first + quarters * max(1, self.columns // 4), extent)
        if quarters > 0 and self.end_ns > extent[1]:
            self.to_live(extent)

    def _hold(self, first: int, extent: tuple[int, int]) -> None:
        self.live = False
        newest = extent[1] // self.column_ns
        self.first = max(extent[0] // self.column_ns, min(first, newest - self.columns // 2))

    def to_oldest(self, extent: tuple[int, int]) -> None:
        """Hold at the oldest instant that is kept."""
        self._hold(extent[0] // self.column_ns, extent)

    def to_live(self, extent: tuple[int, int]) -> None:
        """Follow the present again."""
        self.live = True
        self._place(extent)

    def show(self, at_ns: int, extent: tuple[int, int]) -> None:
        """Hold so that an instant is visible; nothing moves when it already is."""
        if not self.start_ns <= at_ns < min(self.end_ns, extent[1] + self.column_ns):
            self._hold(at_ns // self.column_ns - self.columns // 2, extent)

    def change_zoom(self, by: int, extent: tuple[int, int]) -> bool:
        """Zoom by steps (positive: nearer) about the present or the middle; False at either end."""
        zoom = max(0, min(len(ZOOM_NS) - 1, self.zoom - by))
        if zoom == self.zoom:
            return False
        middle = (self.start_ns + min(self.end_ns, extent[1])) // 2
        self.zoom = zoom
        if self.live:
            self._place(extent)
        else:
            self._hold(middle // self.column_ns - self.columns // 2, extent)
        return True
