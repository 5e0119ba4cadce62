"""What the screen asks of a session, live or replayed: values in, commands out, and nothing of where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ppscope.records import AnyCommand, RankKey
from ppscope.views import BurstOffer, Lane, PhaseStyle, Screen, Span, ThreadStacks


class Feed(Protocol):
    """A source of view values. Every call is cheap and returns at once; times are the node's monotonic nanoseconds."""

    live: bool
    """False for a recording: its `now_ns` stands at its end, and `poll` is True when lanes that were empty can be had."""

    def poll(self) -> bool:
        """Take in what has arrived; True when anything did."""

    def now_ns(self) -> int:
        """The node's present, as well as it is known here."""

    def look_at(self, start_ns: int, end_ns: int) -> None:
        """Take note of what the screen shows; a long recording brings its figures there, and tells by `poll` when it has."""

    def extent(self) -> tuple[int, int]:
        """Oldest and newest instant for which anything is kept."""

    def phases(self) -> tuple[PhaseStyle, ...]:
        """The phase styles that phase indices name."""

    def screen(self) -> Screen:
        """Everything the main screen draws now."""

    def lanes(self, start_ns: int, end_ns: int, columns: int, ranks: Sequence[RankKey] | None = None) -> list[Lane]:
        """Gantt rows over a window cut into equal columns: per rank a `host` lane, and a `gpu` lane where spans are known.

        With `ranks` None one host lane a stage (its tp 0 rank) in stage order.
        """

    def spans(self, rank: RankKey, start_ns: int, end_ns: int) -> list[Span]:
        """Single spans of a rank's main thread, in order."""

    def stacks(self, rank: RankKey, seconds: float, until_ns: int | None = None) -> list[ThreadStacks]:
        """Stack trees of a rank's threads over the last seconds, or those before an instant, busiest thread first."""

    def stack_text(self, stack: int) -> list[tuple[str, str, int | None]]:
        """(function, file, line) of a stack, outermost first."""

    def burst(self) -> BurstOffer | None:
        """What a profile burst would do here; None where none can be had (a recording, trace files, a server that is gone)."""

    def send(self, command: AnyCommand) -> None:
        """Ask the collector for something; ignored by a recording."""

    def ended(self) -> str | None:
        """Why the stream ended, None while it runs."""

    def close(self) -> None:
        """End the collector and wait until it has reaped its children; bounded to about three seconds."""
