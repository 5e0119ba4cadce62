"""Whether a record out of a file keeps the order that a collector's always has: sessions rely on it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import le
from typing import get_args

import msgspec

from ppscope.records import AnyRecord, BurstRank, HostSamples, LoopSample, ProbeSpans, StackSpans
from ppscope.snapshot.window import POINTS, time_of

_FAR_NS = 2**62
_LONGEST_NS = 86_400 * 1_000_000_000
"""No record speaks of more than a day: sums over seconds would be added up for ever."""
_LARGEST = 1e18
_FIGURES: dict[type, tuple[str, ...]] = {
    kind: tuple(field.name for field in msgspec.structs.fields(kind) if float in (field.type, *get_args(field.type)))
    for kind in get_args(AnyRecord)
}
"""Fields of each record that hold a float: what is shown of them is rounded, which no infinity can be."""


def is_sound(record: AnyRecord) -> bool:
    """False for times and figures out of range, spans that end before they begin or go back, and columns of different lengths."""
    at_ns = time_of(record)
    if at_ns is not None and not -_FAR_NS < at_ns < _FAR_NS:
        return False
    for name in _FIGURES[type(record)]:
        value = getattr(record, name)
        if value is not None and not -_LARGEST < value < _LARGEST:  # nor is it a number at all
            return False
    if isinstance(record, POINTS):
        return True
    if isinstance(record, StackSpans):
        return (
            len(record.stacks) == len(record.starts_ns)
            and _within(record.stacks, 0, 2**31)
            and _one_after_another(record.starts_ns, record.ends_ns)
            and _is_short([record.start_ns, record.end_ns, *record.starts_ns[:1], *record.ends_ns[-1:]])
            and record.start_ns <= record.end_ns
        )
    if isinstance(record, LoopSample):
        return all(slot is None or 0 <= slot < 2**15 for slot in (record.mb_id, record.next_mb_id))
    if isinstance(record, ProbeSpans):
        rows = len(record.starts_ns)
        columns = (
            record.kinds, record.ends_ns, record.depths, record.micro_batches, record.modes, record.batch_sizes, record.tokens,
            record.graphs, record.turns,
        )  # fmt: skip
        return (
            rows > 0
            and all(len(column) == rows for column in columns)
            and _within(record.micro_batches, -1, 2**15)
            and _within(record.batch_sizes, 0, 2**16)
            and _within(record.tokens, 0, 2**32)
            and _grows(record.ends_ns)
            and all(map(le, record.starts_ns, record.ends_ns))
            and _is_short([min(record.starts_ns), record.ends_ns[-1]])
        )
    if isinstance(record, HostSamples):
        return _grows(record.at_ns) and len(record.run_ns) == len(record.at_ns)
    if isinstance(record, BurstRank):
        host = len({len(record.host_names), len(record.host_starts_ns), len(record.host_lengths_ns)}) == 1
        gpu = {len(record.gpu_classes), len(record.gpu_starts_ns), len(record.gpu_lengths_ns), len(record.gpu_steps)}
        names = all(0 <= name < len(record.names) for name in record.host_names)
        whole = record.start_ns <= record.end_ns and _is_short([record.start_ns, record.end_ns])
        return host and names and gpu == {len(record.gpu_unexpected)} and whole
    return True


def _within(values: Sequence[int], low: int, below: int) -> bool:
    return not values or (low <= min(values) and max(values) < below)


def _is_short(times: Sequence[int]) -> bool:
    return max(times) - min(times) <= _LONGEST_NS


def _grows(times: Sequence[int]) -> bool:
    return all(map(le, times, islice(times, 1, None)))


def _one_after_another(starts: Sequence[int], ends: Sequence[int]) -> bool:
    if len(starts) != len(ends):
        return False
    edges = [edge for pair in zip(starts, ends, strict=True) for edge in pair]
    return _grows(edges) and (not edges or (edges[0] > -_FAR_NS and edges[-1] < _FAR_NS))
