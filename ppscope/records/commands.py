"""What the view may ask of the collector."""

from __future__ import annotations

from ppscope.records.base import Command, RankKey


class Quit(Command, frozen=True, tag="quit"):
    """Reap everything and exit."""


class SetRate(Command, frozen=True, tag="set_rate"):
    """Sample stacks at most this often."""

    stack_hz: float


class DumpNow(Command, frozen=True, tag="dump_now"):
    """Take `count` dumps of one rank (None: of every rank in turn) as fast as `cores` of CPU allow (None: the collector's own bound)."""

    count: int
    rank: RankKey | None = None
    cores: float | None = None


class ReadServerInfo(Command, frozen=True, tag="read_server_info"):
    """Ask `/server_info` again."""


class Attach(Command, frozen=True, tag="attach"):
    """Leave the present server and attach to the one with this pid."""

    pid: int


class Burst(Command, frozen=True, tag="burst"):
    """Profile `rounds` whole rounds of the pipeline's micro-batches, when no burst runs yet.

    `with_stack` records Python stacks, at a much higher cost. `keep` leaves the trace files where they are. `graphs_expected` is
    what the server resolved for decode graphs, None when nobody knows.
    """

    rounds: int
    with_stack: bool = False
    keep: bool = False
    graphs_expected: bool | None = None


class CancelBurst(Command, frozen=True, tag="cancel_burst"):
    """End the burst that runs now, by /stop_profile; what it wrote is thrown away."""
