"""From the analysis of a rank's trace to its record: bounded columns, steps and launch rows, on the clock of the stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ppscope.records import BurstLaunch, BurstRank, BurstReport, BurstStep, RankKey
from ppscope.trace.align import Run
from ppscope.trace.analyse import EagerLaunch, RankAnalysis
from ppscope.trace.bubble import Bubble
from ppscope.trace.callers import Caller
from ppscope.trace.intervals import merged
from ppscope.trace.names import short_kernel_name
from ppscope.trace.source_lines import SourceLine, parse_line
from ppscope.trace.spans import FURTHEST_NS, GPU_CLASSES
from ppscope.trace.totals import KernelTotal
from ppscope.trace.verdicts import StepResult
from ppscope.trace.windows import work_windows

MOST_SPANS = 40_000
MOST_STEPS = 4_000
MOST_LAUNCHES = 400
MOST_FRAMES = 64
MOST_NAMES = 2_000
LONGEST_NAME = 400


def rank_record(
    analysis: RankAnalysis, run: Run, rank: RankKey, burst: int, offset_ns: int, file: str = ""
) -> BurstRank | None:
    """The record of one rank; `offset_ns` is added to wall time to get the stream's. None for a file without events."""
    if analysis.window_ns is None:
        return None
    start_ns, end_ns = analysis.window_ns
    spans = analysis.spans
    host, host_dropped = _host(analysis, start_ns)
    gpu, joined_ns, gpu_dropped = _gpu(analysis, start_ns)
    busy, communication = _shares(analysis, run)
    kernels = analysis.kernels
    return BurstRank(
        burst=burst,
        rank=rank,
        start_ns=start_ns + offset_ns,
        end_ns=end_ns + offset_ns,
        names=tuple(name[:LONGEST_NAME] for name in spans.names[:MOST_NAMES]),
        host_names=[row[2] for row in host],
        host_starts_ns=[row[0] for row in host],
        host_lengths_ns=[row[1] for row in host],
        gpu_classes=[row[2] for row in gpu],
        gpu_starts_ns=[row[0] for row in gpu],
        gpu_lengths_ns=[row[1] for row in gpu],
        gpu_steps=[row[3] for row in gpu],
        gpu_unexpected=[row[4] for row in gpu],
        steps=tuple(_step(analysis, result, offset_ns) for result in analysis.steps[:MOST_STEPS]),
        launches=launch_rows(analysis),
        kernels=(kernels.total, kernels.replayed, kernels.eager, kernels.unknown, kernels.communication),
        busy_fraction=busy,
        communication_fraction=communication,
        joined_ns=joined_ns,
        host_dropped=spans.host_dropped + host_dropped,
        dropped_events=analysis.dropped_events,
        damage=tuple(analysis.damage[:10]),
        file=file,
        gpu_dropped=spans.gpu_dropped + gpu_dropped,
    )


def report_record(
    run: Run, bubble: Bubble | None, findings: bytes, burst: int, at_ns: int, offset_ns: int
) -> BurstReport:
    """What the ranks say together; `findings` as in the record."""
    window_ns = run.window_ns
    return BurstReport(
        burst=burst,
        at_ns=at_ns,
        start_ns=None if window_ns is None else window_ns[0] + offset_ns,
        end_ns=None if window_ns is None else window_ns[1] + offset_ns,
        bubble=None if bubble is None else bubble.fraction,
        concurrency=() if bubble is None else tuple(bubble.concurrency),
        findings=findings,
    )


def _host(analysis: RankAnalysis, origin_ns: int) -> tuple[list[tuple[int, int, int]], int]:
    """(start, length, name) of the longest spans, in order; and how many shorter ones were left out."""
    spans = analysis.spans
    rows = [
        (start - origin_ns, end - start, name)
        for start, end, name in zip(spans.host_start_ns, spans.host_end_ns, spans.host_name, strict=True)
        if name < MOST_NAMES
    ]
    dropped = max(len(rows) - MOST_SPANS, 0)
    if dropped:
        rows.sort(key=lambda row: -row[1])
        rows = sorted(rows[:MOST_SPANS])
    return rows, dropped


Gpu = tuple[int, int, int, int, int]
"""start, length, class, step, unexpected"""


def _gpu(analysis: RankAnalysis, origin_ns: int) -> tuple[list[Gpu], int, int]:
    """GPU spans, joined over longer and longer gaps until they are few enough; the gap, and how many of the shortest were left out."""
    spans, joined_ns = analysis.spans, analysis.spans.joined_ns
    rows: list[Gpu] = [
        (start - origin_ns, end - start, kind, step, odd)
        for start, end, kind, step, odd in zip(
            spans.gpu_start_ns, spans.gpu_end_ns, spans.gpu_class, spans.gpu_step, spans.gpu_unexpected, strict=True
        )
    ]
    while len(rows) > MOST_SPANS and joined_ns < FURTHEST_NS:
        joined_ns *= 4
        rows = _join(rows, joined_ns)
    dropped = max(len(rows) - MOST_SPANS, 0)
    if dropped:
        rows = sorted(sorted(rows, key=lambda row: -row[1])[:MOST_SPANS])
    return rows, joined_ns, dropped


def _join(rows: Sequence[Gpu], gap_ns: int) -> list[Gpu]:
    done: list[Gpu] = []
    held: dict[tuple[int, int, int], tuple[int, int]] = {}
    for start, length, *key_parts in rows:
        key = (key_parts[0], key_parts[1], key_parts[2])
        before = held.get(key)
        if before is not None and start <= before[1] + gap_ns:
            held[key] = (before[0], max(before[1], start + length))
            continue
        if before is not None:
            done.append((before[0], before[1] - before[0], *key))
        held[key] = (start, start + length)
    done.extend((start, end - start, *key) for key, (start, end) in held.items())
    done.sort()
    return done


def _shares(analysis: RankAnalysis, run: Run) -> tuple[float | None, float | None]:
    """Busy and communicating shares of the time in which requests ran; None without GPU work, or where some of that work was lost."""
    windows = run.work_ns
    window_ns = run.window_ns or analysis.window_ns
    if window_ns is not None and (not windows or analysis.identity.dp != run.ranks[0].identity.dp):
        windows = work_windows([analysis], window_ns)
    if not windows or not (analysis.kernels.total or analysis.memory_operations) or analysis.gpu_lost:
        return None, None
    busy = analysis.busy.share(windows)
    return busy, merged(analysis.busy, analysis.communication).share(windows) - busy


def _step(analysis: RankAnalysis, result: StepResult, offset_ns: int) -> BurstStep:
    shift_ns = analysis.base_ns + analysis.clock_offset_ns + offset_ns
    step = result.step
    return BurstStep(
        name=step.name[:LONGEST_NAME],
        mode=step.mode,
        batch_size=step.batch_size,
        start_ns=step.start_ns + shift_ns,
        end_ns=step.end_ns + shift_ns,
        graph_launches=result.graph_launches,
        replayed_kernels=result.replayed_kernels,
        eager_kernels=result.eager_kernels,
        leaks=len(result.leaks),
        verdict=result.verdict,
        reason=result.reason,
    )


def launch_rows(analysis: RankAnalysis, most: int = MOST_LAUNCHES) -> tuple[BurstLaunch, ...]:
    """GPU work per kernel, origin and expectation: what is out of place first, then what took longest."""
    callers = _callers(analysis.rows)
    rows = sorted(analysis.totals, key=lambda row: (not row.unexpected, -row.gpu_ns))
    return tuple(_launch(row, callers.get((row.kernel, row.unexpected), Caller())) for row in rows[:most])


def _callers(rows: Sequence[EagerLaunch]) -> dict[tuple[str, bool], Caller]:
    """The caller that comes up most, per kernel and whether its launches are out of place."""
    seen: dict[tuple[str, bool], Counter[tuple[str | None, tuple[str, ...]]]] = {}
    for row in rows:
        caller = (row.caller.op, tuple(row.caller.stack))
        seen.setdefault((row.kernel, not row.expected), Counter())[caller] += 1
    found = {}
    for key, counted in seen.items():
        (op, stack), _ = counted.most_common(1)[0]
        found[key] = Caller(op, list(stack))
    return found


def _launch(row: KernelTotal, caller: Caller) -> BurstLaunch:
    line: SourceLine = parse_line(caller.line)
    name = short_kernel_name(row.kernel) if row.kind != GPU_CLASSES.index("memory") else row.kernel
    return BurstLaunch(
        kernel=name[:LONGEST_NAME],
        origin=GPU_CLASSES[row.kind],
        expected=not row.unexpected,
        count=row.count,
        gpu_ns=row.gpu_ns,
        longest_ns=row.longest_ns,
        gap_ns=row.gap_ns,
        steps=row.steps,
        fewest=row.fewest,
        most=row.most,
        stream=str(row.stream)[:40],
        call=row.call,
        op=caller.op,
        function=line.function,
        file=line.file,
        line=line.line,
        stack=tuple(frame[:LONGEST_NAME] for frame in caller.stack[-MOST_FRAMES:]),
    )
