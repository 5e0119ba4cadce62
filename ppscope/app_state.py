"""What the user has chosen to see, and nothing of how it is drawn: cursor, folds, filter, window, freeze, levels."""

from __future__ import annotations

from collections import deque

from ppscope.app_drill import Level, RankLevel, Where, find_rank
from ppscope.app_lanes import Lanes
from ppscope.app_window import Window
from ppscope.feed import Feed
from ppscope.records import RankKey
from ppscope.views import Screen, ThreadStacks
from ppscope.widgets.panel_server import LoadHistory
from ppscope.widgets.panel_stacks import StackKey
from ppscope.widgets.rows import Row, stage_rows

HISTORY_S = 600
STACK_SECONDS = 10.0
SECOND = 1_000_000_000
FIGURES_NS = 300_000_000
"""Keys within this time of the last figures are answered with them: at 64 ranks they are most of the work of a frame."""


class State:
    """The view of one feed. `refresh` takes in what the feed has now, unless the screen is frozen."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.screen: Screen = feed.screen()
        self.present = self.screen
        """What the feed has now, also while `screen` is frozen."""
        self.now_ns = feed.now_ns()
        self._figures_ns = self.now_ns
        self.origin_ns = feed.extent()[0]
        self.window = Window()
        self.lanes = Lanes()
        self.rows: list[Row] = []
        self.visible = 8
        self.top = 0
        self.cursor = 0
        self.folded_out: set[tuple[int, int]] = set()
        self.closed: set[StackKey] = set()
        self.filter = ""
        self.stages_match = True
        self.kept = ""
        self.panel = 1
        self.in_panel = False
        self.enlarged = False
        self.frozen = False
        self.levels: list[Level] = []
        self.seen: set[int] = set()
        self._on_gpu: set[RankKey] = set()
        self._held_stacks: dict[RankKey, list[ThreadStacks]] = {}
        self._cursor_key: tuple[int, int, RankKey | None] | None = None
        self._history: deque[tuple[float | None, float | None, float | None]] = deque(maxlen=HISTORY_S)
        self._history_ns = 0
        self._server = self.screen.header.launcher_pid
        self._layout_rows()

    # What there is.

    @property
    def extent(self) -> tuple[int, int]:
        """Oldest kept instant and the present (the frozen one, when frozen)."""
        return min(self.feed.extent()[0], self.now_ns), self.now_ns

    @property
    def row(self) -> Row | None:
        """The row under the cursor."""
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    @property
    def rank(self) -> RankKey | None:
        """The rank that panels show: the one drilled into, else the one under the cursor."""
        for level in reversed(self.levels):
            if isinstance(level, RankLevel):
                return level.rank
        return self.row.rank.key if self.row else None

    @property
    def history(self) -> LoadHistory:
        """Load once a second."""
        rows = self.screen.load_history or self._history
        if not rows:
            return LoadHistory()
        tokens, running, queued = zip(*rows, strict=True)
        return LoadHistory(tokens, running, queued)

    def where(self, width: int) -> Where:
        """What a level needs to fill its list."""
        end = min(self.window.end_ns, self.now_ns)
        return Where(self.feed, self.stacks, self.screen, self.window.start_ns, end, self.origin_ns, width)

    def stacks(self, rank: RankKey) -> list[ThreadStacks]:
        """Stack trees of a rank over the last seconds; frozen, those up to the figures' instant, which are kept for as long."""
        if not self.frozen:
            return self.feed.stacks(rank, STACK_SECONDS)
        if rank not in self._held_stacks:
            self._held_stacks[rank] = self.feed.stacks(rank, STACK_SECONDS, self.screen.now_ns)
        return self._held_stacks[rank]

    def hold_stacks(self) -> None:
        """Frozen, keep the stacks of one more rank: all at once take a while, and a minute later the feed has them no more."""
        ranks = (row.key for stage in self.screen.stages for row in stage.ranks)
        if self.frozen and (left := next((rank for rank in ranks if rank not in self._held_stacks), None)) is not None:
            self.stacks(left)

    def shown_rows(self) -> list[Row]:
        """The rows that are on the screen now."""
        return self.rows[self.top : self.top + self.visible]

    @property
    def gone(self) -> bool:
        """Whether nothing new will come: the server is gone, or the stream has ended."""
        return self.present.header.state == "gone" or self.feed.ended() is not None

    @property
    def collector_ended(self) -> bool:
        """Whether ppscope's own collector is gone, so that nobody is there to ask for anything."""
        return self.feed.live and self.feed.ended() is not None

    # Taking in.

    def refresh(self) -> None:
        """Take in what the feed has, and bring rows and lanes up to date."""
        self.feed.look_at(self.window.start_ns, self.window.end_ns)
        present_ns = self.feed.now_ns()
        if not 0 < present_ns - self._figures_ns < FIGURES_NS:
            self._figures_ns = present_ns
            self.present = self.feed.screen()
        if not self.frozen:
            self.now_ns, self.screen = present_ns, self.present
            self._held_stacks.clear()
            if self.screen.header.launcher_pid != self._server:
                self._server = self.screen.header.launcher_pid
                self._history.clear()
                self.lanes.forget()
            self._remember_load()
        self.window.follow(self.extent)
        self._layout_rows()
        self.fetch()

    def fetch(self) -> None:
        """Bring the lanes of the visible rows up to date."""
        for _ in range(2):
            before = set(self._on_gpu)
            ranks = list(dict.fromkeys(row.rank.key for row in self.shown_rows() if row.lane))
            self.lanes.fetch(self.feed, self.window, ranks, self.now_ns, self.frozen)
            self._note_gpu_lanes(ranks)
            if self._on_gpu == before:
                break
            self._layout_rows()
        for row in self.lanes.cells.values():
            self.seen.update(cell.phase for cell in row if cell.phase is not None)

    def _note_gpu_lanes(self, fetched: list[RankKey]) -> None:
        """A GPU lane has a row while it shows anything; what is known of ranks that are scrolled away stays."""
        for rank in fetched:
            if any(cell.phase is not None for cell in self.lanes.cells.get((rank, "gpu"), ())):
                self._on_gpu.add(rank)
            else:
                self._on_gpu.discard(rank)

    def _remember_load(self) -> None:
        if self.now_ns - self._history_ns >= SECOND or not self._history:
            load = self.screen.header.load
            self._history.append((load.tokens_per_s, load.running, load.queued))
            self._history_ns = self.now_ns

    def _layout_rows(self) -> None:
        stages = self.screen.stages
        self.rows = stage_rows(stages, self.folded_out, self._on_gpu, self.filter)
        self.stages_match = bool(self.rows)
        if not self.rows:
            # A text of stacks or launches: the panel needs a rank to show them of.
            self.rows = stage_rows(stages, self.folded_out, self._on_gpu)
        if self._cursor_key is not None:
            self.cursor = next((i for i, row in enumerate(self.rows) if _key(row) == self._cursor_key), self.cursor)
        self.cursor = max(0, min(self.cursor, len(self.rows) - 1))
        self._scroll()

    def _scroll(self) -> None:
        self.top = max(0, min(self.top, len(self.rows) - self.visible))
        if self.cursor < self.top:
            self.top = self.cursor
        elif self.cursor >= self.top + self.visible:
            self.top = self.cursor - self.visible + 1

    # What the user asks.

    def show_rows(self, visible: int) -> None:
        """Room for this many rows."""
        self.visible = max(1, visible)
        self._scroll()

    def move(self, by: int) -> None:
        """Move the cursor over rows that can be chosen."""
        rows = [index for index, row in enumerate(self.rows) if row.kind != "gpu"]
        at = self.cursor + by
        if not rows:
            return
        if by > 0:
            self.choose(next((index for index in rows if index >= at), rows[-1]))
        else:
            self.choose(next((index for index in reversed(rows) if index <= at), rows[0]))

    def choose(self, index: int) -> None:
        """Put the cursor on a row."""
        self.cursor = max(0, min(index, len(self.rows) - 1))
        self._cursor_key = _key(self.rows[self.cursor]) if self.rows else None
        self._scroll()

    def deeper(self) -> bool:
        """Fold a stage out, or open the rank under the cursor; False where there is no row."""
        row = self.row
        if row is None:
            return False
        stage = (row.stage.dp, row.stage.pp)
        if row.kind == "stage" and len(row.stage.ranks) > 1 and not row.folded_out:
            self.folded_out.add(stage)
            self._layout_rows()
            self.choose(self.cursor + 1)
            return True
        if row.kind == "stage" and row.folded_out:
            self.folded_out.discard(stage)
            self._layout_rows()
            return True
        self.levels = [RankLevel(row.rank.key)]
        self.in_panel = True
        return True

    def back(self) -> bool:
        """One level up, out of the panel, then fold in, then clear the filter; False when there is nothing to leave."""
        if self.levels:
            self.levels.pop()
            self.in_panel = bool(self.levels)
        elif self.in_panel:
            self.in_panel = False
        elif self.enlarged:
            self.enlarged = False
        elif self.row is not None and (self.row.stage.dp, self.row.stage.pp) in self.folded_out:
            row = self.row
            self.folded_out.discard((row.stage.dp, row.stage.pp))
            self._cursor_key = (row.stage.dp, row.stage.pp, None)
            self._layout_rows()
        elif self.filter:
            self.set_filter("")
        else:
            return False
        return True

    def set_filter(self, text: str) -> None:
        """Show only what has this text."""
        self.filter = text
        self._layout_rows()

    def toggle_freeze(self) -> None:
        """Hold everything that is shown, or let it go on."""
        self.frozen = not self.frozen
        if self.frozen:
            if self.rank is not None:
                self.stacks(self.rank)  # a minute later the feed has them no more
        else:
            self.now_ns = self.feed.now_ns()
            if self.window.live:
                self.window.to_live(self.extent)

    def to_live(self) -> None:
        """Back to now."""
        self.frozen = False
        self.now_ns = self.feed.now_ns()
        self.window.to_live(self.extent)

    def toggle_closed(self, key: StackKey) -> None:
        """Hide or show what a stack node calls."""
        self.closed ^= {key}

    def chosen_ns(self) -> int | None:
        """Start of the span that is drilled into."""
        for level in reversed(self.levels):
            span = getattr(level, "span", None)
            if span is not None:
                return int(span.start_ns)
        return None

    def rank_is_known(self) -> bool:
        """Whether the rank that panels show is still on the screen."""
        return self.rank is not None and find_rank(self.screen, self.rank) is not None


def _key(row: Row) -> tuple[int, int, RankKey | None]:
    return row.stage.dp, row.stage.pp, None if row.kind == "stage" else row.rank.key
