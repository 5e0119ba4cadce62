"""Every record of the stream, and nothing else.

A record is a fact that was seen on the node; what it means is worked out in the view. Times are `int` nanoseconds of the
node's CLOCK_MONOTONIC unless a name says otherwise. `None` means not known (no permission, driver too old, not yet
seen); it is never written as 0. Records travel as msgpack arrays with their tag first, so a field may only ever be
appended, with a default: then old readers skip it and new readers fill it in.
"""

from __future__ import annotations

from typing import Union

import msgspec

SCHEMA = 1
"""Version of this record set; a reader refuses a stream whose major schema is higher than its own."""


class Record(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of every record of the stream."""


class RankKey(msgspec.Struct, frozen=True, array_like=True, gc=False, order=True):
    """The scheduler's place in the server: data-, pipeline- and tensor-parallel rank."""

    dp: int
    pp: int
    tp: int


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


class GpuRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The GPU of a rank and how it was found.

    `index` is NVML's; `None` when only the CUDA ordinal is known and the order is not PCI_BUS_ID. `source` is one of
    `nvml_pid`, `dump_locals`, `title_formula`, `emulated`.
    """

    index: int | None
    uuid: str | None
    cuda_ordinal: int | None
    source: str


class Rank(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One scheduler process. `started_ticks` is /proc's start time: with the pid it names the process for ever."""

    key: RankKey
    pid: int
    started_ticks: int
    title: str
    gpu: GpuRef | None = None
    ep: int | None = None
    attn_cp: int | None = None
    moe_dp: int | None = None
    main_tid: int | None = None
    ns_pid: int | None = None
    """Pid inside the target's own pid namespace; None when it is the same."""
    threads: int | None = None


class Fact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One thing known about the server, with where it came from (`cmdline`, `server_info`, `title`, `dump`, `env`, `log`)."""

    name: str
    value: str | int | float | bool | None
    source: str


class Server(Record, frozen=True, tag="server"):
    """The server that was found; sent again whenever something about it changes.

    `kind` is `launch_server`, `serve`, `engine` (embedded) or `node` (a node without HTTP). `state` is `loading`, `serving`
    or `gone`. `launch_command` is redacted.
    """

    at_ns: int
    launcher_pid: int
    launcher_started_ticks: int
    kind: str
    state: str
    ranks: tuple[Rank, ...]
    pp_size: int
    tp_size: int
    dp_size: int
    version: str | None = None
    model: str | None = None
    device: str | None = None
    """`cuda`, `cpu`, `hip`, `xpu`, `npu`; None when nothing says it."""
    host: str | None = None
    port: int | None = None
    user: str | None = None
    launch_command: tuple[str, ...] = ()
    sglang_path: str | None = None
    """Folder of the installed `sglang` package as the target sees it."""
    facts: tuple[Fact, ...] = ()
    emulated: bool = False
    others: tuple[tuple[int, str], ...] = ()
    """(pid, title) of the other processes of the server: detokenizer, DP controller, tokenizer workers."""
    pp_loop_size: int | None = None


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
    processors: list[int] = []
    """The core each row was seen on (last ran on, when asleep); empty when not known."""


class RankExit(Record, frozen=True, tag="exit"):
    """A scheduler process is gone (`reason`: `gone`, `zombie`, `pid_reused`) or stopped by somebody (`stopped`, `resumed`)."""

    rank: RankKey
    pid: int
    at_ns: int
    reason: str


class ServerGone(Record, frozen=True, tag="server_gone"):
    """The launcher is gone; `candidates` are (launcher pid, model or title) of servers that could be attached to instead."""

    at_ns: int
    launcher_pid: int
    candidates: tuple[tuple[int, str], ...] = ()


class GpuDevice(Record, frozen=True, tag="gpu"):
    """What does not change about a GPU, by NVML. Emulated GPUs are marked and never mixed with real ones."""

    index: int
    uuid: str
    name: str
    power_limit_w: float | None = None
    memory_total_bytes: int | None = None
    pci_bus_id: str | None = None
    pcie_gen_max: int | None = None
    pcie_width_max: int | None = None
    sm_clock_max_mhz: int | None = None
    mig: bool | None = None
    numa_node: int | None = None
    driver_version: str | None = None
    emulated: bool = False
    p2p: tuple[tuple[int, str], ...] = ()
    """(other index, link) for each other GPU: `NVLINK`, `PIX`, `PHB`, `SYS` … or `NS` where NVML does not say."""


class GpuSample(Record, frozen=True, tag="gpu_sample"):
    """One reading of one GPU by NVML; each field is None where NVML gave N/A, no permission or an error."""

    index: int
    at_ns: int
    power_w: float | None = None
    power_limit_w: float | None = None
    util_percent: int | None = None
    memory_util_percent: int | None = None
    memory_used_bytes: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    pcie_tx_kb_s: int | None = None
    pcie_rx_kb_s: int | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    throttle_reasons: int | None = None
    """NVML's clocks-event (throttle) reasons bitmask."""
    pids: tuple[int, ...] | None = None
    """Pids of compute processes as NVML names them (the host's namespace, usually)."""


class LoadSample(Record, frozen=True, tag="load"):
    """What the server says of its load. `source` is `metrics`, `server_info`, `loads` or `log`. `stage` None = whole server.

    Under pipeline parallelism SGLang's own running counts are the size of one micro-batch (0.5.6 to 0.5.23: the gauge, `/get_load`,
    `/v1/loads` and the log all read `len(running_batch.reqs)` of the slot at hand). So `running` of a stage is one
    micro-batch, and `running` of the whole server is None when there is more than one stage.
    """

    at_ns: int
    source: str
    running: int | None = None
    queued: int | None = None
    tokens_per_s: float | None = None
    token_usage: float | None = None
    stage: int | None = None
    micro_batch: float | None = None
    """Mean requests of a decode pass over the last seconds, from counters (tokens ÷ passes); None with speculative decoding."""
    in_flight: int | None = None
    """Open generation requests at the HTTP server: fewer than the sequences when one carries several prompts or streams."""


class BatchLog(Record, frozen=True, tag="batch_log"):
    """A `Decode batch` or `Prefill batch` line of the server's log.

    `wall_ns` is the line's own time (whole seconds); `running` is the size of one micro-batch of one stage. `graph` is the
    line's cuda-graph flag, None when the version does not print it.
    """

    at_ns: int
    wall_ns: int | None
    mode: str
    dp: int | None
    pp: int | None
    tp: int | None
    running: int | None = None
    queued: int | None = None
    tokens_per_s: float | None = None
    graph: bool | None = None
    new_sequences: int | None = None
    new_tokens: int | None = None
    token_usage: float | None = None


class LogNote(Record, frozen=True, tag="log_note"):
    """A log line that says something about graphs, capture or trouble; `kind` is `capture`, `graph_disabled`, `error`, `profile`."""

    at_ns: int
    kind: str
    text: str
    pp: int | None = None


class Metric(Record, frozen=True, tag="metric"):
    """One series of `/metrics` that ppscope knows, with the labels it keeps (`pp_rank`, `mode`, `category` …)."""

    at_ns: int
    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


class Settings(Record, frozen=True, tag="settings"):
    """Server settings as asked or as resolved. `origin` is `requested` (command line, environment), `resolved` (/server_info)
    or `model` (the model's own config.json).

    `values` is the flat or nested mapping with secrets removed; a value that was removed reads `«redacted»`.
    """

    at_ns: int
    origin: str
    values: dict[str, object]


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


class Rules(Record, frozen=True, tag="rules"):
    """The graph rules of the installed SGLang: `book` is the msgpack of a `RuleBook`, empty where `problem` says why there is none."""

    at_ns: int
    version: str | None
    path: str
    book: bytes = b""
    problem: str = ""


class Cost(Record, frozen=True, tag="cost"):
    """CPU of ppscope on this node since the last such record, in cores: our own Python, and the tools it runs."""

    at_ns: int
    own_cores: float
    children_cores: float
    stack_rate_hz: float | None = None


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


AnyRecord = Union[
    Hello, Clock, Server, FrameDef, StackDef, StackSpans, LoopSample, HostSamples, RankExit, ServerGone, GpuDevice, GpuSample,
    LoadSample, BatchLog, LogNote, Metric, Settings, SourceStatus, Cost, Dropped, Note, End, Rules, BurstStatus,
    BurstRank, BurstReport, ProbeSpans,
]  # fmt: skip


class Command(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of what the view may ask of the collector."""


class Quit(Command, frozen=True, tag="quit"):
    """Reap everything and exit."""


class SetRate(Command, frozen=True, tag="set_rate"):
    """Sample stacks at most this often."""

    stack_hz: float


class DumpNow(Command, frozen=True, tag="dump_now"):
    """Take `count` dumps of one rank (None: of every rank in turn) as fast as the budget allows."""

    count: int
    rank: RankKey | None = None


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


AnyCommand = Union[Quit, SetRate, DumpNow, ReadServerInfo, Attach, Burst, CancelBurst]
