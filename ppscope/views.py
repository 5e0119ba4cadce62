"""Values that widgets draw: made by the session from records, immutable, without behaviour.

Provenance is `exact` (probe or profiler), `sampled` (stacks) or `inferred` (micro-batch ids between dumps). `None` is
unknown and is drawn as `–`. Times are CLOCK_MONOTONIC nanoseconds of the node.
"""

from __future__ import annotations

import msgspec

from ppscope.records import GpuDevice, GpuSample, RankKey

MOST_SPANS = 500
"""A list of single spans shows the newest of them."""


class Value(msgspec.Struct, frozen=True, gc=False):
    """Base of every view value."""


class PhaseStyle(Value, frozen=True):
    """How a phase is told apart without colour and with it.

    `kind` is `work`, `wait`, `idle`, `other` or `frozen`; `colour` is a name of the ANSI-16 set or `#rrggbb`; `colour16` is what a
    16-colour terminal shows. `glyph` is for Unicode terminals, `ascii` for the rest.
    """

    name: str
    label: str
    kind: str
    glyph: str
    ascii: str
    colour: str
    colour16: str


class Cell(Value, frozen=True):
    """One column of a lane: what filled most of its time, and how much of it was work.

    `phase` is an index into the phase styles, None where nothing was seen. `work` is the share of the seen time in work phases,
    0–1. `mark` is `eager` where an eager launch ran though a replay was expected.
    """

    phase: int | None
    work: float | None
    micro_batch: int | None = None
    mark: str | None = None


class Lane(Value, frozen=True):
    """A row of the Gantt over one window: `host` or `gpu`, one cell a column, oldest first."""

    rank: RankKey
    lane: str
    provenance: str
    cells: tuple[Cell, ...]


class Span(Value, frozen=True):
    """One phase of one rank, zoomed in."""

    start_ns: int
    end_ns: int
    phase: int
    stack: int | None
    micro_batch: int | None
    provenance: str
    mode: str | None = None
    """Forward mode of the batch at hand, in SGLang's name (`DECODE`, `EXTEND` …); by the probe alone."""
    batch_size: int | None = None
    """Requests of that batch."""
    tokens: int | None = None
    graph: str | None = None
    """What became of the graph in this forward (`ppscope.probe.layout.GRAPHS`), None where no forward ended here."""


class RankRow(Value, frozen=True):
    """One rank of a stage, for the fold-out."""

    key: RankKey
    pid: int
    alive: bool
    exit_reason: str | None
    gpu_index: int | None
    gpu_source: str | None
    power_w: float | None
    power_limit_w: float | None
    util_percent: int | None
    host_cpu: float | None
    """Share of one core that the main thread ran, 0–1."""
    phases: tuple[tuple[int, float], ...]
    """(phase index, share of seen time) over the last seconds, largest first."""
    threads: int | None = None


class StageRow(Value, frozen=True):
    """One pipeline stage: its ranks summed up. GPU figures are means over its ranks; `gpus` names their NVML indices."""

    dp: int
    pp: int
    ranks: tuple[RankRow, ...]
    alive: bool
    gpus: tuple[int, ...]
    power_w: float | None
    power_limit_w: float | None
    util_percent: float | None
    host_work: float | None
    """Share of the window in which the scheduler's main thread was in a work phase (sampled), 0–1."""
    busy: float | None
    """Busy share by GPU evidence (or host evidence on a CPU server); None without it."""
    busy_source: str | None
    """`trace`, `probe`, `metric`, `host` or None."""
    phases: tuple[tuple[int, float], ...]
    emulated: bool = False
    label: str | None = None
    """What it is called where it is no stage of a known pipeline; None: by its stage number."""


class Load(Value, frozen=True):
    """The server's load as last seen."""

    tokens_per_s: float | None
    running: int | None
    queued: int | None
    decode_share: float | None
    """Share of batches seen in the log (or of forward time) that were decode, 0–1."""
    source: str | None
    running_provenance: str | None = None
    """`exact` where the server counts it; `inferred` from slots × micro-batch size or open HTTP requests; None without a figure."""


class GraphState(Value, frozen=True):
    """Requested, resolved and observed state of one kind of graph: `on`, `off`, `mixed` or None each."""

    requested: str | None
    resolved: str | None
    observed: str | None
    observed_source: str | None = None


class Occupancy(Value, frozen=True):
    """How many micro-batch slots hold requests. `mean` None: fewer than 20 informative samples."""

    slots: int | None
    mean: float | None
    samples: int
    provenance: str | None


class SourceNote(Value, frozen=True):
    """A source that is not well, for the header."""

    name: str
    state: str
    message: str
    remedy: str
    since_ns: int


class Finding(Value, frozen=True):
    """A claim with its evidence. `severity` is `high`, `medium` or `info`; `source` is (file, line) pairs of the installed SGLang."""

    id: str
    severity: str
    stage: int | None
    summary: str
    evidence: tuple[str, ...]
    remedy: str
    provenance: str
    source: tuple[tuple[str, int], ...] = ()


class Header(Value, frozen=True):
    """The two top lines of the screen."""

    model: str | None
    version: str | None
    layout: str
    """`PP8×TP1`, with `DP2×` in front where there is one."""
    host: str
    launcher_pid: int
    state: str
    """`loading`, `serving`, `idle`, `gone`, `recording` …"""
    load: Load
    decode_graph: GraphState
    prefill_graph: GraphState
    stack_rate_hz: float | None
    cost_cores: float | None
    other_share: float | None
    """Share of seen stack time that no phase rule names, 0–1."""
    notes: tuple[SourceNote, ...]
    emulated: bool = False
    dropped: int = 0
    provenance: str | None = None
    candidates: tuple[tuple[int, str], ...] = ()
    """(pid, name) of servers to re-attach to, once this one is gone."""
    idle_cores: float | None = None
    """Idle cores of the node where they are so few that stacks are sampled less; None elsewhere."""


class StackNode(Value, frozen=True):
    """A node of the stack tree: share of the window under it, and in it."""

    function: str
    file: str
    line: int | None
    total: float
    own: float
    phase: int | None
    children: tuple[StackNode, ...]


class ThreadStacks(Value, frozen=True):
    """One thread's stack tree over a window."""

    rank: RankKey
    tid: int
    thread: str
    seconds: float
    root: StackNode


class GpuPanelRow(Value, frozen=True):
    """One GPU with its history, oldest first; a None in a history is a reading that was not to be had."""

    device: GpuDevice
    last: GpuSample | None
    power_w: tuple[float | None, ...]
    util_percent: tuple[float | None, ...]
    throttle: tuple[str, ...]
    """Names of the throttle reasons in force, idle left out."""
    ranks: tuple[RankKey, ...]
    stalled_s: float | None = None


class SettingRow(Value, frozen=True):
    """One setting, three facts; each None where it is not known."""

    name: str
    requested: str | None
    resolved: str | None
    observed: str | None
    differs: bool


class LaunchRow(Value, frozen=True):
    """GPU work of one kernel on one stage, summed over a burst or trace.

    `kind` is `eager`, `replay`, `memory`, `comm` or `unknown` (launched before the recording began); `gpu_us` is its GPU time.
    `function`, `file` and `line` are the innermost Python frame of the program, None where the trace has no stacks; `reason` says
    why an eager launch is out of place, None where it is not. `steps` have it, each between `fewest` and `most` times.
    """

    kind: str
    name: str
    count: int
    gpu_us: float | None
    stage: int | None
    function: str | None
    file: str | None
    line: int | None
    reason: str | None
    provenance: str
    rank: RankKey | None = None
    op: str | None = None
    call: str | None = None
    stream: str | None = None
    longest_us: float | None = None
    gap_us: float | None = None
    """Mean time that its stream stood idle before it; None where that is not known."""
    steps: int = 0
    fewest: int = 0
    most: int = 0
    share: float | None = None
    """Share of the stage's GPU time, 0–1."""
    stack: tuple[str, ...] = ()
    """Python frames of the caller that comes up most, outermost first."""


class BurstOffer(Value, frozen=True):
    """What a profile burst would do here, before it is asked for. `micro_batches` is for `rounds`; `slots` are those of one round."""

    slots: int
    rounds: int
    device: str | None
    ranks: int
    folder: str
    costs: tuple[str, ...]
    risks: tuple[str, ...]
    stack_risks: tuple[str, ...]
    problem: str | None = None
    """Why no burst can be made now."""


class BurstProgress(Value, frozen=True):
    """How far the newest burst is; `state` as in the record, `ranks` with theirs. `results` grows whenever lanes and launches change."""

    burst: int
    state: str
    message: str
    remedy: str
    ranks: tuple[tuple[RankKey, str], ...]
    active: bool
    seconds: float
    at_ns: int
    """When it last said something."""
    results: int = 0
    start_ns: int | None = None
    end_ns: int | None = None
    """The window that all ranks recorded; None until it is known."""
    folder: str | None = None
    """Where its trace files were written, as the server sees it; they are gone again unless they were to be kept."""


class Screen(Value, frozen=True):
    """Everything the main screen draws at one instant."""

    now_ns: int
    header: Header
    stages: tuple[StageRow, ...]
    occupancy: Occupancy
    findings: tuple[Finding, ...]
    gpus: tuple[GpuPanelRow, ...] = ()
    settings: tuple[SettingRow, ...] = ()
    launches: tuple[LaunchRow, ...] = ()
    burst: BurstProgress | None = None
    load_history: tuple[tuple[float | None, float | None, float | None], ...] = ()
    """Tokens a second, running and queued requests once a second up to then, of a recording; a live one's are remembered as they come."""
