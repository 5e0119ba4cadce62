"""What is kept of a trace: a few typed columns, filled a batch at a time."""

from __future__ import annotations

import math
from array import array
from typing import Any

import msgspec

from ppscope.trace.names import (
    CALL_CATEGORIES,
    GPU_CATEGORIES,
    OLD_OPERATOR_CATEGORY,
    RECORDING_CATEGORY,
    SPAN_CATEGORIES,
    CallKind,
    call_kind,
)
from ppscope.trace.step_names import parse_step

UNKNOWN = -1


class Arguments(msgspec.Struct, gc=False):
    """The few event arguments that are read; 2021 traces write streams as `stream 7` in `tid` and as a number here."""

    correlation: int = UNKNOWN
    stream: int | str | None = None
    device: int | str | None = None
    name: int | float | str | None = None
    labels: int | float | str | None = None


class Event(msgspec.Struct, gc=False):
    """One trace event; `ts` and `dur` are microseconds in every version, whatever displayTimeUnit says."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: int | float = math.nan
    dur: int | float = 0
    args: Arguments | None = None


# Below this many microseconds a double times 1000 is still exact to the nanosecond; above, the whole part goes first.
_EXACT_US = 9e12
_LARGEST_US = 2.2e15


def _nanoseconds(values_us: list[int | float]) -> array[int]:
    # Beyond half a century either way a number is damage, and would overflow with the base added.
    if max(values_us) > _LARGEST_US or min(values_us) < -_LARGEST_US:
        raise OverflowError
    if abs(values_us[0]) < _EXACT_US:
        return array("q", [round(value * 1000) for value in values_us])
    return array("q", [int(value) * 1000 + round((value - int(value)) * 1000) for value in values_us])


class Names(dict[Any, int]):
    """Gives every new key the next number."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


class GpuColumns:
    """Kernels and memory operations. Times are nanoseconds on the file's own clock; `lane` numbers (device, stream) pairs."""

    def __init__(self) -> None:
        self.start_ns = array("q")
        self.duration_ns = array("q")
        self.correlation = array("q")
        self.name = array("l")
        self.lane = array("l")
        self.kind = array("b")

    def __len__(self) -> int:
        return len(self.start_ns)


class CallColumns:
    """Runtime and driver calls that start or record GPU work; `thread` numbers (pid, tid) pairs."""

    def __init__(self) -> None:
        self.start_ns = array("q")
        self.duration_ns = array("q")
        self.correlation = array("q")
        self.name = array("l")
        self.thread = array("l")
        self.kind = array("b")

    def __len__(self) -> int:
        return len(self.start_ns)


class SpanColumns:
    """Annotations on the CPU."""

    def __init__(self) -> None:
        self.start_ns = array("q")
        self.duration_ns = array("q")
        self.name = array("l")
        self.thread = array("l")

    def __len__(self) -> int:
        return len(self.start_ns)


_KEPT = frozenset(GPU_CATEGORIES) | CALL_CATEGORIES | SPAN_CATEGORIES | {"", RECORDING_CATEGORY}


class ColumnBuilder:
    """Turns batches of events into columns. `dropped_events` counts events whose numbers make no sense."""

    def __init__(self) -> None:
        self.gpu = GpuColumns()
        self.calls = CallColumns()
        self.spans = SpanColumns()
        self.names = Names()
        self.lanes = Names()
        self.threads = Names()
        self.titles: dict[int | str, str] = {}
        self.labels: dict[int | str, str] = {}
        self.recording_ns: tuple[int, int] | None = None
        self.events = 0
        self.dropped_events = 0

    def add(self, batch: list[Event]) -> None:
        """Adds a batch; an event with an impossible number is dropped alone."""
        self.events += len(batch)
        gpu: list[Event] = []
        calls: list[tuple[Event, CallKind]] = []
        spans: list[Event] = []
        for event in batch:
            category = event.cat
            if category not in _KEPT:
                # In 2021 step marks were operators.
                if category == OLD_OPERATOR_CATEGORY and event.ph == "X" and parse_step(event.name) is not None:
                    spans.append(event)
            elif event.ph != "X":
                if event.ph == "M":
                    self._metadata(event)
            elif category in GPU_CATEGORIES:
                gpu.append(event)
            elif category in CALL_CATEGORIES:
                kind = call_kind(event.name)
                if kind is not None:
                    calls.append((event, kind))
            elif category in SPAN_CATEGORIES:
                spans.append(event)
            elif category == RECORDING_CATEGORY:
                self._recording(event)
        for group, add in ((gpu, self._add_gpu), (calls, self._add_calls), (spans, self._add_spans)):
            self._carefully(group, add)

    def _carefully(self, group: list[Any], add: Any) -> None:
        if not group:
            return
        try:
            add(group)
        except (OverflowError, ValueError):
            for one in group:
                try:
                    add([one])
                except (OverflowError, ValueError):
                    self.dropped_events += 1

    def _add_gpu(self, group: list[Event]) -> None:
        columns = self.gpu
        lanes = self.lanes
        names = self.names
        start_ns = _nanoseconds([event.ts for event in group])
        duration_ns = _nanoseconds([event.dur for event in group])
        if min(duration_ns) < 0:
            raise ValueError
        found = [event.args or _NO_ARGUMENTS for event in group]
        correlation = array("q", [arguments.correlation for arguments in found])
        columns.start_ns.extend(start_ns)
        columns.duration_ns.extend(duration_ns)
        columns.correlation.extend(correlation)
        columns.name.extend([names[event.name] for event in group])
        columns.lane.extend(
            [
                lanes[event.pid, event.tid if arguments.stream is None else arguments.stream]
                for event, arguments in zip(group, found, strict=True)
            ]
        )
        columns.kind.extend([GPU_CATEGORIES[event.cat] for event in group])

    def _add_calls(self, group: list[tuple[Event, CallKind]]) -> None:
        columns = self.calls
        names = self.names
        threads = self.threads
        start_ns = _nanoseconds([event.ts for event, _ in group])
        duration_ns = _nanoseconds([event.dur for event, _ in group])
        correlation = array("q", [UNKNOWN if event.args is None else event.args.correlation for event, _ in group])
        columns.start_ns.extend(start_ns)
        columns.duration_ns.extend(duration_ns)
        columns.correlation.extend(correlation)
        columns.name.extend([names[event.name] for event, _ in group])
        columns.thread.extend([threads[event.pid, event.tid] for event, _ in group])
        columns.kind.extend([kind for _, kind in group])

    def _add_spans(self, group: list[Event]) -> None:
        columns = self.spans
        start_ns = _nanoseconds([event.ts for event in group])
        duration_ns = _nanoseconds([event.dur for event in group])
        columns.start_ns.extend(start_ns)
        columns.duration_ns.extend(duration_ns)
        columns.name.extend([self.names[event.name] for event in group])
        columns.thread.extend([self.threads[event.pid, event.tid] for event in group])

    def _metadata(self, event: Event) -> None:
        if event.args is None:
            return
        if event.name == "process_name" and event.args.name is not None:
            self.titles[event.pid] = str(event.args.name)
        elif event.name == "process_labels" and event.args.labels is not None:
            self.labels[event.pid] = str(event.args.labels)

    def _recording(self, event: Event) -> None:
        try:
            start_ns, length_ns = _nanoseconds([event.ts, event.dur])
        except (OverflowError, ValueError):
            self.dropped_events += 1
            return
        self.recording_ns = (start_ns, start_ns + max(length_ns, 0))


_NO_ARGUMENTS = Arguments()
