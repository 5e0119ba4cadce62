"""What schedulers do: stacks by py-spy, spans by the probe, run time by the kernel."""

from __future__ import annotations

import msgspec

from ppscope.records.base import RankKey, Record


class FrameDef(Record, frozen=True, tag="frame"):
    """A stack frame, sent once and named by `id` from then on."""

    id: int
    function: str
    file: str
    line: int | None


class StackDef(Record, frozen=True, tag="stack"):
    """A stack as frame ids, outermost first, sent once and named by `id` from then on."""

    id: int
    frames: tuple[int, ...]


class StackSpans(Record, frozen=True, tag="spans"):
    """What one thread's stack was over a window, by py-spy: `starts_ns[i]`..`ends_ns[i]` it was `stacks[i]`.

    Spans are in order and do not overlap; `period_ns` is the sampling period, the error of every edge.
    """

    rank: RankKey
    tid: int
    thread: str
    start_ns: int
    end_ns: int
    period_ns: int
    starts_ns: list[int]
    ends_ns: list[int]
    stacks: list[int]
    samples: int | None = None
    failed: float | None = None
    """Share of the window's samples that could not be read, because the stack moved under py-spy's eyes; 0–1."""


class ProbeSpans(Record, frozen=True, tag="probe"):
    """Calls of one rank's loop as the probe inside it timed them: parallel columns, a row a span, in the order they ended.

    `kinds`, `modes` and `graphs` are codes of `ppscope.probe.layout`, one byte a row; `depths` tell how many timed calls a span lay
    in. A span may lie in a later row's (its caller's). `micro_batches` is -1 where a span belongs to none; sizes, tokens and modes
    are 0 where no batch was at hand. `turns` count the loop's turns. `sequence` is the first row's number in the ring and `lost` says
    how many before it were never read. `gpu_error_ns` is how far off GPU forwards may be on the host's clock.
    """

    rank: RankKey
    tid: int
    sequence: int
    lost: int
    kinds: bytes
    starts_ns: list[int]
    ends_ns: list[int]
    depths: bytes
    micro_batches: list[int]
    modes: bytes
    batch_sizes: list[int]
    tokens: list[int]
    graphs: bytes
    turns: list[int]
    slots: int | None = None
    """Micro-batch slots of the loop."""
    gpu_error_ns: int | None = None


class LoopSample(Record, frozen=True, tag="loop"):
    """One `py-spy dump`: the scheduler's main stack and the named locals of its event loop, nothing else of its memory.

    `mb_id` and `next_mb_id` are the loop's; `batch` says whether the loop's local `cur_batch` (0.5.23) held a batch at a line
    where it counts, None when it cannot be told. `occupied` is read from 0.5.6's local list `mbs`.
    """

    rank: RankKey
    at_ns: int
    error_ns: int
    stack: int
    loop: str | None = None
    mb_id: int | None = None
    next_mb_id: int | None = None
    batch: bool | None = None
    occupied: tuple[bool, ...] | None = None
    owns_gil: bool | None = None


class HostSamples(Record, frozen=True, tag="host"):
    """Thread run time of one rank from /proc, one row per sample.

    `run_ns` and `wait_ns` (waiting for a core) are cumulative schedstat figures of the main thread. `states` are /proc state
    letters and `processors` cores, both read every few rows and repeated in between. `process_cpu_ns` is the whole process's
    cumulative CPU time at the last row. `wait_ns` is empty where the kernel keeps no schedstat; then `run_ns` is exact to a
    tick of 10 ms only.
    """

    rank: RankKey
    tid: int
    at_ns: list[int]
    run_ns: list[int]
    wait_ns: list[int]
    states: str
    process_cpu_ns: int | None = None
    rss_bytes: int | None = None
    threads: int | None = None
    processors: list[int] = msgspec.field(default_factory=list)
    """The core each row was seen on (last ran on, when asleep); empty when not known."""
