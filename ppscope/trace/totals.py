"""GPU work summed per kernel: how often, how long, in which steps, and how long its stream stood idle before it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ppscope.trace.launches import NONE, Launches
from ppscope.trace.spans import COMMUNICATION

MAX_TOTALS = 300


class KernelTotal(msgspec.Struct, gc=False):
    """All GPU events of one kernel name and one origin on a rank.

    `kind` indexes GPU_CLASSES; `unexpected` is True for eager launches where a replay was expected. `gap_ns` is the mean idle time of
    the stream before it, None where nothing ran before. `steps` have it, each between `fewest` and `most` times. `call` is the launch call
    that comes first, None when it is not in the file.
    """

    kernel: str
    kind: int
    unexpected: bool
    count: int = 0
    gpu_ns: int = 0
    longest_ns: int = 0
    gap_ns: int | None = None
    steps: int = 0
    fewest: int = 0
    most: int = 0
    device: int | str = 0
    stream: int | str = 0
    call: str | None = None


def kernel_totals(
    launches: Launches, step_of_gpu: Sequence[int], order: Sequence[int], unexpected: set[int], limit: int = MAX_TOTALS
) -> list[KernelTotal]:
    """Sums up all GPU events, given by start in `order`: at most `limit` rows that are out of place and as many others, longest first."""
    trace = launches.trace
    gpu, calls = trace.gpu, trace.calls
    rows: dict[tuple[int, int, bool], KernelTotal] = {}
    gaps: dict[tuple[int, int, bool], list[int]] = {}
    in_steps: dict[tuple[int, int, bool], dict[int, int]] = {}
    ends: dict[int, int] = {}
    for index in order:
        kind = COMMUNICATION if launches.communicates(index) else launches.origin[index]
        key = (gpu.name[index], kind, index in unexpected)
        row = rows.get(key)
        lane = gpu.lane[index]
        if row is None:
            call = launches.call[index]
            row = rows[key] = KernelTotal(trace.names[key[0]], kind, key[2])
            row.device, row.stream = trace.lanes[lane]
            row.call = None if call == NONE else trace.names[calls.name[call]]
            gaps[key], in_steps[key] = [0, 0], {}
        start_ns, took_ns = gpu.start_ns[index], gpu.duration_ns[index]
        row.count += 1
        row.gpu_ns += took_ns
        row.longest_ns = max(row.longest_ns, took_ns)
        end_ns = ends.get(lane)
        if end_ns is not None:
            gap = gaps[key]
            gap[0] += max(start_ns - end_ns, 0)
            gap[1] += 1
        ends[lane] = start_ns + took_ns if end_ns is None else max(end_ns, start_ns + took_ns)
        step = step_of_gpu[index]
        if step != NONE:
            held = in_steps[key]
            held[step] = held.get(step, 0) + 1
    for key, row in rows.items():
        idle_ns, known = gaps[key]
        row.gap_ns = idle_ns // known if known else None
        counts = in_steps[key].values()
        row.steps, row.fewest, row.most = len(counts), min(counts, default=0), max(counts, default=0)
    ordered = sorted(rows.values(), key=lambda row: (-row.gpu_ns, row.kernel))
    return [
        *[row for row in ordered if row.unexpected][:limit],
        *[row for row in ordered if not row.unexpected][:limit],
    ]
