"""The stream about itself: its beginning and end, clocks, sources, cost, what was dropped."""

from __future__ import annotations

from ppscope.records.base import RankKey, Record


class Hello(Record, frozen=True, tag="hello"):
    """First record of a stream: who writes it, and the map from CLOCK_MONOTONIC to wall time."""

    schema: int
    ppscope_version: str
    host: str
    mono_ns: int
    wall_ns: int
    collector_pid: int
    python: str = ""
    platform: str = ""


class Clock(Record, frozen=True, tag="clock"):
    """A later reading of both clocks, so that a step of the wall clock is noticed."""

    mono_ns: int
    wall_ns: int


class SourceStatus(Record, frozen=True, tag="source"):
    """How a source is doing: `ok`, `off` (not wanted or not possible), `degraded` (works in part), `dead`, `stalled`.

    `name` is `stacks`, `dumps`, `host`, `gpu`, `http`, `metrics`, `log`, `rules`, `probe` or `burst`.
    """

    name: str
    at_ns: int
    state: str
    message: str = ""
    remedy: str = ""
    rank: RankKey | None = None


class Cost(Record, frozen=True, tag="cost"):
    """CPU of ppscope on this node since the last such record, in cores: the collector, the tools it runs, and the view.

    `idle_cores` is how many cores of the node are idle where that is so few that stacks are sampled less; None elsewhere.
    `view_cores` is of the process that started the collector; None where it cannot be told.
    """

    at_ns: int
    own_cores: float
    children_cores: float
    stack_rate_hz: float | None = None
    idle_cores: float | None = None
    view_cores: float | None = None

    @property
    def cores(self) -> float:
        """All of it."""
        return self.own_cores + self.children_cores + (self.view_cores or 0.0)


class Dropped(Record, frozen=True, tag="dropped"):
    """Records that the collector threw away because the reader was not reading."""

    at_ns: int
    records: int
    bytes: int


class Note(Record, frozen=True, tag="note"):
    """A line for the user that is not bound to a source. `level` is `info`, `warning` or `error`."""

    at_ns: int
    level: str
    text: str


class End(Record, frozen=True, tag="end"):
    """Last record of an orderly stream. `reason` is `quit`, `target_gone`, `attach_failed`, `seconds` or `error`."""

    at_ns: int
    reason: str
    message: str = ""
    remedy: str = ""
    exit_code: int = 0
