"""Lanes of the window, fetched a little at a time: what is settled is kept, only the newest seconds are asked for again."""

from __future__ import annotations

from collections.abc import Sequence

from ppscope.app_window import Window
from ppscope.feed import Feed
from ppscope.records import RankKey
from ppscope.views import Cell

SETTLED_NS = 5_000_000_000
"""Behind what is drawn as now sampling windows bring nothing new; older columns change no more, but for micro-batch numbers."""

WHOLE_EVERY_NS = 10_000_000_000
"""All columns are asked for again this often, for what was inferred later."""

NOTHING = Cell(None, None)

LaneKey = tuple[RankKey, str]


class Lanes:
    """Cells by (rank, lane) for the columns of a window, oldest first."""

    def __init__(self) -> None:
        self.cells: dict[LaneKey, list[Cell]] = {}
        self.provenance: dict[LaneKey, str] = {}
        self._key: tuple[int, int, tuple[RankKey, ...]] | None = None
        self._first = 0
        self._settled = 0
        self._whole_ns = 0

    def forget(self) -> None:
        """Ask for everything next time."""
        self._key = None

    def fetch(self, feed: Feed, window: Window, ranks: Sequence[RankKey], now_ns: int, hold: bool) -> None:
        """Bring the cells up to date with as few columns as will do; with `hold` only when other columns are wanted."""
        key = (window.column_ns, window.columns, tuple(ranks))
        if hold and key == self._key and window.first == self._first:
            return
        if (
            key != self._key
            or now_ns - self._whole_ns > WHOLE_EVERY_NS
            or abs(window.first - self._first) >= window.columns
        ):
            self.cells.clear()
            self.provenance.clear()
            self._key, self._whole_ns, self._settled = key, now_ns, window.first
        elif window.first != self._first:
            self._shift(window.first - self._first, window.columns)
            if window.first < self._first:
                self._settled = window.first
        self._first = window.first
        start = max(window.first, self._settled)
        end = min(window.first + window.columns, now_ns // window.column_ns + 1)
        if start < end and ranks:
            for lane in feed.lanes(start * window.column_ns, end * window.column_ns, end - start, ranks):
                at = start - window.first
                row = self.cells.setdefault((lane.rank, lane.lane), [NOTHING] * window.columns)
                row[at : at + end - start] = lane.cells
                self.provenance[(lane.rank, lane.lane)] = lane.provenance
        self._settled = min(max(start, (now_ns - SETTLED_NS) // window.column_ns), end)

    def _shift(self, by: int, columns: int) -> None:
        empty = [NOTHING] * abs(by)
        for key, row in self.cells.items():
            self.cells[key] = [*row[by:], *empty] if by > 0 else [*empty, *row[:by]]
            assert len(self.cells[key]) == columns
