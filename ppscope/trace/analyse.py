"""Everything that is worked out from one file, as one value that travels between processes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from ppscope.trace.callers import Caller, find_callers
from ppscope.trace.identity import Identity, identify
from ppscope.trace.intervals import Intervals
from ppscope.trace.launches import NONE, Launches, Origin
from ppscope.trace.names import CallKind, is_collective
from ppscope.trace.reader import RankTrace, read_trace
from ppscope.trace.source import Progress
from ppscope.trace.spans import RankSpans, export_spans
from ppscope.trace.steps import find_steps
from ppscope.trace.totals import KernelTotal, kernel_totals
from ppscope.trace.verdicts import Judged, StepResult, judge

MAX_ROWS = 2000
MAX_NORMAL_ROWS = 200
EXPLAIN_BYTES = 8 << 20
LOST_SHARE = 0.1
"""With more graph launches than this without GPU work in the file, its GPU would seem idle while it worked."""


class KernelCounts(msgspec.Struct, gc=False):
    """Kernels by origin; `communication` counts kernels that are in one of the other classes too."""

    total: int
    replayed: int
    eager: int
    unknown: int
    communication: int


class LaunchCounts(msgspec.Struct, gc=False):
    """Launch calls: of single kernels, of graphs, and those of single kernels that were recorded into a graph instead of run."""

    eager: int
    graph: int
    recorded: int


class EagerLaunch(msgspec.Struct, gc=False):
    """One kernel launched on its own. Times are nanoseconds on the file's clock.

    `gap_ns` is how long its stream was idle before it, None for the first kernel there. `expected` is False where a replay was
    expected instead.
    """

    step: int | None
    kernel: str
    call: str
    launch_ns: int
    start_ns: int
    duration_ns: int
    device: int | str
    stream: int | str
    gap_ns: int | None
    expected: bool
    caller: Caller


class RankAnalysis(msgspec.Struct, gc=False):
    """What one file says.

    `busy`, `communication` and `collective` (of it what stays within a stage) are intervals and `window_ns` the recorded window (None
    for a file without events), in nanoseconds of wall time. `clock_offset_ns` was added to bring this rank's host onto the run's clock,
    0 on one host. `rows` holds eager launches: at most MAX_ROWS that are out of place (`unexpected` counts all of them), and
    MAX_NORMAL_ROWS that are normal beside a replay.
    `totals` sums up all GPU work per kernel. `gpu_lost` is True where so much GPU work is missing that idle time proves nothing.
    """

    path: str
    identity: Identity
    base_ns: int
    kernels: KernelCounts
    launches: LaunchCounts
    memory_operations: int
    events: int
    dropped_events: int
    mended_events: int
    damage: list[str]
    steps: list[StepResult]
    median_replay_kernels: int | None
    baseline: list[tuple[str, int]] | None
    unexpected: int
    rows: list[EagerLaunch]
    busy: Intervals
    communication: Intervals
    collective: Intervals
    window_ns: tuple[int, int] | None
    spans: RankSpans
    clock_offset_ns: int = 0
    totals: list[KernelTotal] = []
    gpu_lost: bool = False


def analyse_file(path: str | Path, progress: Progress | None = None) -> RankAnalysis:
    """Reads and analyses one file; raises TraceError when it cannot be read."""
    return analyse(read_trace(path, progress))


def analyse(trace: RankTrace) -> RankAnalysis:
    """Analyses a file that was read; it is read once more when eager launches are to be explained."""
    launches = Launches(trace)
    judged = judge(launches, find_steps(trace))
    unexpected, normal = _interesting(launches, judged)
    order = sorted(range(len(trace.gpu)), key=trace.gpu.start_ns.__getitem__)
    rows = _rows(launches, judged, order, unexpected[:MAX_ROWS], normal[:MAX_NORMAL_ROWS])
    odd = set(unexpected)
    gpu = trace.gpu
    collective = [is_collective(name) for name in trace.names]
    talking = bytes(launches.communicates(index) for index in range(len(gpu)))
    counts = [launches.origin.count(origin) for origin in (Origin.REPLAYED, Origin.EAGER, Origin.UNKNOWN)]
    recorded = sum(launches.recorded)
    graphs = trace.calls.kind.count(CallKind.GRAPH_LAUNCH)
    empty = launches.empty_graph_launches() if graphs else 0  # a pass over all of the file
    gpu_lost = empty > LOST_SHARE * graphs
    lost = [f"{empty} of {graphs} graph launches have no GPU work in the file: busy and idle time are not known"]
    window_ns = trace.window_ns()
    return RankAnalysis(
        path=str(trace.path),
        identity=identify(trace),
        base_ns=trace.base_ns,
        kernels=KernelCounts(sum(counts), counts[0], counts[1], counts[2], sum(talking)),
        launches=LaunchCounts(trace.calls.kind.count(CallKind.LAUNCH) - recorded, graphs, recorded),
        memory_operations=launches.origin.count(Origin.MEMORY),
        events=trace.events,
        dropped_events=trace.dropped_events,
        mended_events=trace.mended_events,
        damage=trace.damage + lost * gpu_lost,
        steps=judged.steps,
        median_replay_kernels=judged.median_replay_kernels,
        baseline=judged.baseline,
        unexpected=len(unexpected),
        rows=rows,
        busy=_intervals(trace, (index for index in order if not talking[index])),
        communication=_intervals(trace, (index for index in order if talking[index])),
        collective=_intervals(trace, (index for index in order if talking[index] and collective[gpu.name[index]])),
        window_ns=None if window_ns is None else (window_ns[0] + trace.base_ns, window_ns[1] + trace.base_ns),
        spans=export_spans(launches, judged, order, odd),
        totals=kernel_totals(launches, judged.step_of_gpu, order, odd),
        gpu_lost=gpu_lost,
    )


def _intervals(trace: RankTrace, indices: Iterable[int]) -> Intervals:
    """The union of GPU events, given in order of their starts."""
    start_ns, duration_ns, base_ns = trace.gpu.start_ns, trace.gpu.duration_ns, trace.base_ns
    return Intervals.union(
        (start_ns[index] + base_ns, start_ns[index] + duration_ns[index] + base_ns) for index in indices
    )


def _interesting(launches: Launches, judged: Judged) -> tuple[list[int], list[int]]:
    """GPU event indices of eager launches that are out of place, and of those that are normal beside a replay."""
    unexpected: list[int] = []
    normal: list[int] = []
    leaks = {index for result in judged.steps for index in result.leaks}
    for index, step in enumerate(judged.step_of_gpu):
        if step == NONE or launches.origin[index] != Origin.EAGER or launches.communicates(index):
            continue
        result = judged.steps[step]
        if index in leaks or _is_misplaced(result):
            unexpected.append(index)
        elif result.graph_launches:
            normal.append(index)
    return unexpected, normal


def _is_misplaced(result: StepResult) -> bool:
    if result.verdict == "leak":
        return not result.leaks
    return result.verdict == "eager" and result.step.is_decode


def _rows(
    launches: Launches, judged: Judged, order: list[int], unexpected: list[int], normal: list[int]
) -> list[EagerLaunch]:
    trace = launches.trace
    gpu, calls = trace.gpu, trace.calls
    wanted = unexpected + normal
    at = [launches.call[index] for index in wanted]
    callers = [Caller() for _ in at]
    # What is normal is worth a second reading of a small file only.
    if unexpected or (normal and trace.path.stat().st_size < EXPLAIN_BYTES):
        callers = find_callers(trace.path, [(trace.threads[calls.thread[call]], calls.start_ns[call]) for call in at])
    gaps = _gaps(trace, order, set(wanted)) if wanted else {}
    odd = set(unexpected)
    return [
        EagerLaunch(
            step=judged.step_of_gpu[index],
            kernel=trace.names[gpu.name[index]],
            call=trace.names[calls.name[call]],
            launch_ns=calls.start_ns[call],
            start_ns=gpu.start_ns[index],
            duration_ns=gpu.duration_ns[index],
            device=trace.lanes[gpu.lane[index]][0],
            stream=trace.lanes[gpu.lane[index]][1],
            gap_ns=gaps[index],
            expected=index not in odd,
            caller=caller,
        )
        for index, call, caller in zip(wanted, at, callers, strict=True)
    ]


def _gaps(trace: RankTrace, order: list[int], wanted: set[int]) -> dict[int, int | None]:
    gpu = trace.gpu
    lanes = {gpu.lane[index] for index in wanted}
    ends: dict[int, int] = {}
    gaps: dict[int, int | None] = {}
    for index in order:
        lane, start_ns = gpu.lane[index], gpu.start_ns[index]
        if lane not in lanes:
            continue
        end_ns = ends.get(lane)
        if index in wanted:
            gaps[index] = None if end_ns is None else max(start_ns - end_ns, 0)
        ends[lane] = max(end_ns or start_ns, start_ns + gpu.duration_ns[index])
    return gaps
