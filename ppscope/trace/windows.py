"""When a pipeline had work at all: a profile also records the time before, after and between its requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from statistics import median

from ppscope.trace.analyse import RankAnalysis
from ppscope.trace.intervals import Intervals

Window = tuple[int, int]

_LONG_GAP_NS = 100_000_000
_LONG_GAP_PERIODS = 5
"""A stretch in which no stage has a step open, longer than this many steps take, lay between requests: it is no bubble."""
_BETWEEN_PASSES_NS = 10_000_000
"""Kernels of one pass follow each other faster."""


def work_windows(ranks: Sequence[RankAnalysis], recorded_ns: Window) -> tuple[Window, ...]:
    """The parts of what was recorded in which requests ran, by one rank of each stage; nanoseconds of wall time, in order.

    They begin when the last stage to get work gets it and end when the first one has done its last, so a pipeline that fills or
    drains counts for nothing. Empty where no step and no kernel lies in the recorded time.
    """
    held = [list(_open(rank)) for rank in ranks]
    if not held or not all(held):
        return ()
    start_ns = max(recorded_ns[0], *(min(start for start, _ in pairs) for pairs in held))
    end_ns = min(recorded_ns[1], *(max(end for _, end in pairs) for pairs in held))
    gap_ns = max(_LONG_GAP_NS, *(_LONG_GAP_PERIODS * _period_ns(rank) for rank in ranks))
    found: list[Window] = []
    union = Intervals.union(sorted(chain.from_iterable(held)))
    for opened_ns, closed_ns in zip(union.start_ns, union.end_ns, strict=True):
        at, to = max(opened_ns, start_ns), min(closed_ns, end_ns)
        if at < to and found and at - found[-1][1] <= gap_ns:
            found[-1] = (found[-1][0], to)
        elif at < to:
            found.append((at, to))
    return tuple(found)


def _open(rank: RankAnalysis) -> Iterator[Window]:
    """Each step from its start on the host to its end on host or GPU; without steps (SGLang up to 0.5.6) each stretch of kernels."""
    shift_ns = rank.base_ns + rank.clock_offset_ns
    for result in rank.steps:
        yield result.step.start_ns + shift_ns, max(result.step.end_ns, result.gpu_end_ns or 0) + shift_ns
    if not rank.steps:
        yield from zip(rank.busy.start_ns, rank.busy.end_ns, strict=True)


def _period_ns(rank: RankAnalysis) -> int:
    """The usual time from one step's start to the next one's, or without steps between stretches of kernels; 0 with fewer than two."""
    if rank.steps:
        gaps = [after.step.start_ns - before.step.start_ns for before, after in pairwise(rank.steps)]
    else:
        gaps = [start - end for end, start in zip(rank.busy.end_ns, rank.busy.start_ns[1:], strict=False)]
        gaps = [gap for gap in gaps if gap > _BETWEEN_PASSES_NS]
    return round(median(gaps)) if gaps else 0
