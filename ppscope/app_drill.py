"""The levels below the stage rows: each knows its crumb, what to list, and what lies deeper."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Union

from ppscope.feed import Feed
from ppscope.records import RankKey
from ppscope.views import LaunchRow, RankRow, Screen, Span, ThreadStacks
from ppscope.widgets.detail import (
    Frame,
    candidates_listing,
    phase_label,
    rank_listing,
    source_listing,
    span_listing,
)
from ppscope.widgets.listing import Item, Listing
from ppscope.widgets.panel_launches import launch_listing
from ppscope.widgets.rows import rank_name
from ppscope.widgets.text import cut, duration


class Where(NamedTuple):
    """What a level needs to fill its list."""

    feed: Feed
    stacks: Callable[[RankKey], list[ThreadStacks]]
    screen: Screen
    start_ns: int
    end_ns: int
    origin_ns: int
    width: int


class RankLevel(NamedTuple):
    """One rank: its facts and the spans of the window."""

    rank: RankKey

    def crumb(self, feed: Feed) -> str:
        """Its place in the way down."""
        return rank_name(self.rank)

    def listing(self, where: Where) -> Listing:
        """Spans of the window, newest first."""
        row = find_rank(where.screen, self.rank)
        if row is None:
            return Listing((Item((((" this rank is no longer known", "dim"),),)),))
        spans = where.feed.spans(self.rank, where.start_ns, where.end_ns)
        return rank_listing(row, spans, where.feed.phases(), where.origin_ns, where.width)

    def deeper(self, item: Item, where: Where) -> SpanLevel | None:
        """The chosen span."""
        for span in where.feed.spans(self.rank, where.start_ns, where.end_ns):
            if (span.start_ns, span.phase) == item.key:
                return SpanLevel(self.rank, span)
        return None


class SpanLevel(NamedTuple):
    """One span: its facts and its stack."""

    rank: RankKey
    span: Span

    def crumb(self, feed: Feed) -> str:
        """Its place in the way down."""
        return f"{phase_label(feed.phases(), self.span.phase)} {duration(self.span.end_ns - self.span.start_ns)}"

    def listing(self, where: Where) -> Listing:
        """The stack, innermost first."""
        frames = [] if self.span.stack is None else where.feed.stack_text(self.span.stack)
        return span_listing(self.span, frames, where.feed.phases(), where.origin_ns, where.width)

    def deeper(self, item: Item, where: Where) -> SourceLevel | None:
        """The source line of the chosen frame."""
        if isinstance(item.key, tuple) and len(item.key) == 2:
            return SourceLevel(self.rank, item.key[1])
        return None


class SourceLevel(NamedTuple):
    """One source line over the last seconds."""

    rank: RankKey
    frame: Frame

    def crumb(self, feed: Feed) -> str:
        """Its place in the way down."""
        function, file, line = self.frame
        return f"{file.rsplit('/', 1)[-1]}:{line}" if line is not None else function

    def listing(self, where: Where) -> Listing:
        """Callers and callees with their shares."""
        return source_listing(self.frame, where.stacks(self.rank), where.width)

    def deeper(self, item: Item, where: Where) -> None:
        """Nothing lies below a source line."""


class LaunchLevel(NamedTuple):
    """One row of the launches panel."""

    row: LaunchRow

    def crumb(self, feed: Feed) -> str:
        """Its place in the way down."""
        return cut(self.row.name, 40)

    def listing(self, where: Where) -> Listing:
        """Everything that is known of it."""
        return launch_listing(self.row, where.width)

    def deeper(self, item: Item, where: Where) -> None:
        """Nothing lies below a launch."""


class CandidatesLevel(NamedTuple):
    """Servers to attach to, once this one is gone."""

    candidates: tuple[tuple[int, str], ...]

    def crumb(self, feed: Feed) -> str:
        """Its place in the way down."""
        return "attach to"

    def listing(self, where: Where) -> Listing:
        """Pids and names."""
        return candidates_listing(self.candidates, where.width)

    def deeper(self, item: Item, where: Where) -> None:
        """The app attaches to the chosen one."""


Level = Union[RankLevel, SpanLevel, SourceLevel, LaunchLevel, CandidatesLevel]


def find_rank(screen: Screen, key: RankKey) -> RankRow | None:
    """The row of a rank, None when the screen no longer has it."""
    return next((rank for stage in screen.stages for rank in stage.ranks if rank.key == key), None)
