"""A stretch of a stream: series cut at its edges, facts as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from ppscope.records import AnyRecord, HostSamples, ProbeSpans, StackSpans
from ppscope.snapshot.window import extent_of, is_bulk

_PROBE_ROWS = (
    "kinds", "starts_ns", "ends_ns", "depths", "micro_batches", "modes", "batch_sizes", "tokens", "graphs", "turns"
)  # fmt: skip


def clip(records: Iterable[AnyRecord], start_ns: int, end_ns: int) -> Iterator[AnyRecord]:
    """Records of a stretch. Spans are cut at its edges; a call that the probe timed is in it where it ended in it."""
    for record in records:
        extent = extent_of(record)
        if extent is None or not is_bulk(record) or (start_ns <= extent[0] and extent[1] <= end_ns):
            yield record
            continue
        if extent[1] < start_ns or extent[0] > end_ns:
            continue
        part: AnyRecord | None
        if isinstance(record, StackSpans):
            part = _spans(record, start_ns, end_ns)
        elif isinstance(record, ProbeSpans):
            part = _rows(record, _PROBE_ROWS, [start_ns < at <= end_ns for at in record.ends_ns])
        elif isinstance(record, HostSamples):
            part = _host(record, [start_ns <= at <= end_ns for at in record.at_ns])
        else:
            part = record
        if part is not None:
            yield part


def _spans(record: StackSpans, start_ns: int, end_ns: int) -> StackSpans | None:
    kept = [
        (max(start, start_ns), min(end, end_ns), stack)
        for start, end, stack in zip(record.starts_ns, record.ends_ns, record.stacks, strict=True)
        if end > start_ns and start < end_ns
    ]
    begin, end = max(record.start_ns, start_ns), min(record.end_ns, end_ns)
    if end <= begin:
        return None
    whole = record.end_ns - record.start_ns
    samples = None if record.samples is None else round(record.samples * (end - begin) / max(whole, 1))
    return msgspec.structs.replace(
        record,
        start_ns=begin,
        end_ns=end,
        starts_ns=[row[0] for row in kept],
        ends_ns=[row[1] for row in kept],
        stacks=[row[2] for row in kept],
        samples=samples,
    )


def _rows(record: ProbeSpans, names: Iterable[str], keep: list[bool]) -> ProbeSpans | None:
    if not any(keep):
        return None
    columns = {}
    for name in names:
        column = getattr(record, name)
        values = [value for value, kept in zip(column, keep, strict=True) if kept]
        columns[name] = bytes(values) if isinstance(column, bytes) else values
    return msgspec.structs.replace(record, **columns, sequence=record.sequence + keep.index(True))


def _host(record: HostSamples, keep: list[bool]) -> HostSamples | None:
    if not any(keep):
        return None
    rows = len(keep)
    columns = {}
    for name in HostSamples.__struct_fields__:
        column = getattr(record, name)
        if isinstance(column, list | str) and len(column) == rows:
            values = [value for value, kept in zip(column, keep, strict=True) if kept]
            columns[name] = "".join(map(str, values)) if isinstance(column, str) else values
    # The whole process's time is that of the last row.
    process_cpu_ns = record.process_cpu_ns if keep[-1] else None
    return msgspec.structs.replace(record, **{**columns, "process_cpu_ns": process_cpu_ns})
