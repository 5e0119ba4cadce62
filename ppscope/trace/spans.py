"""One rank's host and GPU spans on the wall clock, small enough to be sent and drawn over the live Gantt."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ppscope.trace.launches import Launches
from ppscope.trace.verdicts import Judged

GPU_CLASSES = ("replayed", "eager", "unknown", "memory", "communication")
"""What `gpu_class` numbers mean; the first four are the numbers of Origin."""
COMMUNICATION = 4
MAX_SPANS = 200_000
JOIN_NS = 2_000
FURTHEST_NS = 10_000_000_000
"""Spans further apart than this are never joined: that gains no more, and there may be as many (class, step) as spans."""

GpuSpan = tuple[int, int, int, int, int]
"""Start, end, class, step, unexpected."""


class RankSpans(msgspec.Struct, gc=False):
    """Spans in start order, as columns; times are nanoseconds of CLOCK_REALTIME since the epoch.

    `host_name[i]` indexes `names`, `gpu_class[i]` GPU_CLASSES. `gpu_step[i]` is the step's index, -1 outside of steps; `gpu_unexpected[i]`
    is 1 where an eager launch ran though a replay was expected. GPU spans of one class and step that are less than `joined_ns` apart
    are one. `host_dropped` and `gpu_dropped` count the spans, the shortest, that were left out to stay below MAX_SPANS.
    """

    names: list[str]
    host_name: list[int]
    host_start_ns: list[int]
    host_end_ns: list[int]
    gpu_start_ns: list[int]
    gpu_end_ns: list[int]
    gpu_class: list[int]
    gpu_step: list[int]
    gpu_unexpected: list[int]
    joined_ns: int
    host_dropped: int = 0
    gpu_dropped: int = 0


def export_spans(
    launches: Launches, judged: Judged, order: list[int], unexpected: set[int], limit: int = MAX_SPANS
) -> RankSpans:
    """Builds the spans of a rank.

    `order` are all GPU event indices by start, `unexpected` those of misplaced launches. GPU spans are joined further as long as there
    are more than `limit`.
    """
    trace = launches.trace
    gap_ns = JOIN_NS
    rows = _join((_gpu_span(launches, judged, index, index in unexpected) for index in order), gap_ns)
    while len(rows) > limit and gap_ns < FURTHEST_NS:
        gap_ns *= 4
        rows = _join(rows, gap_ns)
    gpu_dropped = max(len(rows) - limit, 0)
    if gpu_dropped:
        rows = sorted(sorted(rows, key=lambda row: row[0] - row[1])[:limit])
    host, host_dropped = _host(launches, limit)
    names = sorted({trace.names[name] for _, _, name in host})
    number = {name: index for index, name in enumerate(names)}
    return RankSpans(
        names=names,
        host_name=[number[trace.names[name]] for _, _, name in host],
        host_start_ns=[start_ns for start_ns, _, _ in host],
        host_end_ns=[end_ns for _, end_ns, _ in host],
        gpu_start_ns=[row[0] for row in rows],
        gpu_end_ns=[row[1] for row in rows],
        gpu_class=[row[2] for row in rows],
        gpu_step=[row[3] for row in rows],
        gpu_unexpected=[row[4] for row in rows],
        joined_ns=gap_ns,
        host_dropped=host_dropped,
        gpu_dropped=gpu_dropped,
    )


def _gpu_span(launches: Launches, judged: Judged, index: int, is_unexpected: bool) -> GpuSpan:
    gpu = launches.trace.gpu
    kind = COMMUNICATION if launches.communicates(index) else launches.origin[index]
    start_ns = gpu.start_ns[index] + launches.trace.base_ns
    return start_ns, start_ns + max(gpu.duration_ns[index], 0), kind, judged.step_of_gpu[index], int(is_unexpected)


def _join(rows: Iterable[GpuSpan], gap_ns: int) -> list[GpuSpan]:
    """Joins neighbours of one class, step and expectation; streams may interleave, so each class keeps its own open span."""
    done: list[GpuSpan] = []
    unfinished: dict[tuple[int, int, int], tuple[int, int]] = {}
    for start_ns, end_ns, kind, step, odd in rows:
        key = (kind, step, odd)
        held = unfinished.get(key)
        if held is not None and start_ns <= held[1] + gap_ns:
            unfinished[key] = (held[0], max(held[1], end_ns))
            continue
        if held is not None:
            done.append((*held, *key))
        unfinished[key] = (start_ns, end_ns)
    done.extend((*held, *key) for key, held in unfinished.items())
    done.sort()
    return done


def _host(launches: Launches, limit: int) -> tuple[list[tuple[int, int, int]], int]:
    trace = launches.trace
    spans = trace.spans
    rows = [
        (
            spans.start_ns[index] + trace.base_ns,
            spans.start_ns[index] + max(spans.duration_ns[index], 0) + trace.base_ns,
            spans.name[index],
        )
        for index in range(len(spans))
    ]
    dropped = max(len(rows) - limit, 0)
    if dropped:
        rows.sort(key=lambda row: row[0] - row[1])
        rows = rows[:limit]
    rows.sort()
    return rows, dropped
