"""Reads one torch profiler trace into columns."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ppscope.trace.columns import CallColumns, ColumnBuilder, Event, GpuColumns, SpanColumns
from ppscope.trace.events import EventStream
from ppscope.trace.repair import mend
from ppscope.trace.source import Progress, TraceError, TraceSource

__all__ = ["RankTrace", "TraceError", "read_trace"]

_MERGED_LABEL = re.compile(r"\[(?:(?:TP|DP|PP|EP)\d{2,}-?)+\] ")
"""What SGLang's ProfileMerger puts before every pid."""
_WANTED = (
    "baseTimeNanoseconds",
    "distributedInfo",
    "deviceProperties",
    "host_name",
    "traceName",
    "trace_id",
    "with_stack",
)


class RankTrace:
    """One file's columns and what the file says about itself.

    Times in the columns are nanoseconds; `base_ns` added to them gives wall time (CLOCK_REALTIME), 0 for files whose events carry wall
    time themselves. `dropped_events` counts damaged events that were lost; `damage` are lines that say what else was wrong.
    `recording_ns` is the recording window on the file's clock where the file has it.
    """

    def __init__(self, path: Path, builder: ColumnBuilder, metadata: dict[str, Any]) -> None:
        self.path = path
        self.metadata = metadata
        self.gpu: GpuColumns = builder.gpu
        self.calls: CallColumns = builder.calls
        self.spans: SpanColumns = builder.spans
        self.names: list[str] = list(builder.names)
        self.lanes: list[tuple[int | str, int | str]] = list(builder.lanes)
        self.threads: list[tuple[int | str, int | str]] = list(builder.threads)
        self.titles = builder.titles
        self.labels = builder.labels
        self.recording_ns = builder.recording_ns
        self.events = builder.events
        self.dropped_events = builder.dropped_events
        self.mended_events = 0
        self.damage: list[str] = []
        base = metadata.get("baseTimeNanoseconds")
        self.base_ns = base if isinstance(base, int) and 0 <= base < 4 * 10**18 else 0

    def window_ns(self) -> tuple[int, int] | None:
        """The recorded window on the file's clock, None for a file without a single kept event."""
        columns = [column for column in (self.gpu, self.calls, self.spans) if len(column)]
        starts = [min(column.start_ns) for column in columns]
        ends = [max(map(int.__add__, column.start_ns, column.duration_ns)) for column in columns]
        if self.recording_ns is not None:
            starts.append(self.recording_ns[0])
            ends.append(self.recording_ns[1])
        return (min(starts), max(ends)) if starts else None


def read_trace(path: str | Path, progress: Progress | None = None) -> RankTrace:
    """Reads a trace file, plain or gzip, of any layout and age.

    `progress` is called with (bytes of the file read, bytes in the file). Damaged events are lost alone and counted.
    Raises TraceError, with one line for the user, when the file cannot be opened or holds no trace.
    """
    source = TraceSource(path, progress)
    stream = EventStream(source, Event)
    builder = ColumnBuilder()
    for batch in stream.batches():
        builder.add(batch)
        if len(_merged_ranks(builder)) > 1:
            raise TraceError(_instead_of_merged(source.path))
    trace = RankTrace(source.path, builder, _metadata(stream.head, stream.tail))
    trace.dropped_events += stream.dropped_events
    trace.mended_events = stream.mended_events
    if source.damage:
        trace.damage.append(source.damage)
    if stream.truncated:
        trace.damage.append("the list of events ends in the middle: the file was cut off")
    return trace


def _merged_ranks(builder: ColumnBuilder) -> set[str]:
    """The ranks that a merged file names; every rank numbers its launches alike, so those of several cannot be told apart."""
    pids = {*builder.titles, *(pid for pid, _ in builder.threads), *(pid for pid, _ in builder.lanes)}
    found = (_MERGED_LABEL.match(pid) for pid in pids if isinstance(pid, str))
    return {match[0] for match in found if match is not None}


def _instead_of_merged(path: Path) -> str:
    run = path.name.removeprefix("merged-").split(".trace.json")[0] if path.name.startswith("merged-") else "*"
    return (
        f"{path}: this is SGLang's merged trace, in which launches of different ranks have the same numbers;"
        f" give the ranks' own files instead: {run}-TP-*.trace.json.gz"
    )


def _metadata(head: bytes, tail: bytes) -> dict[str, Any]:
    """The top-level values that matter, each read on its own, so that damage to one costs no other."""
    decoder = json.JSONDecoder()
    found: dict[str, Any] = {}
    for part in (head, tail):
        if not part:
            continue
        text = mend(part).decode()
        for key in _WANTED:
            match = re.search(rf'(?<!\\)"{key}"\s*:\s*', text)
            if match is None:
                continue
            try:
                found[key], _ = decoder.raw_decode(text, match.end())
            except (ValueError, RecursionError):
                continue
    return found
