"""A profile burst: how it goes, and what its traces hold."""

from __future__ import annotations

import msgspec

from ppscope.records.base import RankKey, Record


class BurstRankState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far one rank of a burst is: `asked`, `running`, `writing`, `whole`, `reading`, `done`, `missing` or `failed`."""

    rank: RankKey
    state: str
    file_bytes: int = 0
    problem: str = ""


class BurstStatus(Record, frozen=True, tag="burst"):
    """How far a profile burst is; sent whenever that changes.

    `burst` is its number, the instant at which it was asked for. `state` is `asked`, `running`, `stopping`, `waiting` (for whole
    files), `reading`, `done`, `failed` or `cancelled`. `folder` is as the server sees it, None before there is one.
    """

    burst: int
    at_ns: int
    state: str
    message: str = ""
    remedy: str = ""
    ranks: tuple[BurstRankState, ...] = ()
    num_steps: int | None = None
    folder: str | None = None
    prefix: str = ""


class BurstStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One step of a rank. `verdict` is `replayed`, `eager`, `leak`, `expected_eager` or `unknown`, `reason` says why in a line."""

    name: str
    mode: str | None
    batch_size: int | None
    start_ns: int
    end_ns: int
    graph_launches: int
    replayed_kernels: int
    eager_kernels: int
    leaks: int
    verdict: str
    reason: str


class BurstLaunch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """GPU work of one kernel and one origin, summed over a rank's burst.

    `origin` is `replayed`, `eager`, `unknown` (launched before the burst began), `memory` or `communication`; `expected` is False
    for eager launches where a replay was expected. `gap_ns` is the mean idle time of its stream before it, None when never
    known. `steps` have it, each between `fewest` and `most` times. `op`, `line` and `stack` (outermost first) are those of the
    caller that comes up most, where the profile holds them.
    """

    kernel: str
    origin: str
    expected: bool
    count: int
    gpu_ns: int
    longest_ns: int
    gap_ns: int | None
    steps: int
    fewest: int
    most: int
    stream: str
    call: str | None = None
    op: str | None = None
    function: str | None = None
    file: str | None = None
    line: int | None = None
    stack: tuple[str, ...] = ()


class BurstRank(Record, frozen=True, tag="burst_rank"):
    """What a torch profile says of one rank between `start_ns` and `end_ns`; starts in the columns count from `start_ns`.

    Host spans index `names`; they nest and may overlap. GPU classes are 0 replayed, 1 eager, 2 unknown, 3 memory,
    4 communication; `gpu_steps` index `steps`, -1 outside; `gpu_unexpected` is 1 where an eager launch ran though a replay was
    expected. GPU spans of one class and step less than `joined_ns` apart are one. `kernels` counts total, replayed, eager,
    unknown and communication. Fractions are of the window that all ranks recorded, None without GPU work in the file.
    """

    burst: int
    rank: RankKey
    start_ns: int
    end_ns: int
    names: tuple[str, ...]
    host_names: list[int]
    host_starts_ns: list[int]
    host_lengths_ns: list[int]
    gpu_classes: list[int]
    gpu_starts_ns: list[int]
    gpu_lengths_ns: list[int]
    gpu_steps: list[int]
    gpu_unexpected: list[int]
    steps: tuple[BurstStep, ...]
    launches: tuple[BurstLaunch, ...]
    kernels: tuple[int, int, int, int, int]
    busy_fraction: float | None = None
    communication_fraction: float | None = None
    joined_ns: int = 0
    host_dropped: int = 0
    dropped_events: int = 0
    damage: tuple[str, ...] = ()
    file: str = ""
    staged: bool = True
    """Whether `rank` is a place in a pipeline; False for a trace file that does not know its stage."""
    gpu_dropped: int = 0
    """GPU spans, the shortest, that were too many to be sent even joined."""


class BurstReport(Record, frozen=True, tag="burst_report"):
    """What the ranks of a burst say together.

    `bubble` is the share of all stages' time in which they were not busy and `concurrency[n]` the share of the window in which n
    stages were busy at once; None and empty without GPU work on two stages. `findings` is the msgpack of a list of
    `ppscope.views.Finding`.
    """

    burst: int
    at_ns: int
    start_ns: int | None = None
    end_ns: int | None = None
    bubble: float | None = None
    concurrency: tuple[float, ...] = ()
    findings: bytes = b""
