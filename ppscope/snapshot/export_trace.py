"""The merged timeline as Chrome trace events, which Perfetto and chrome://tracing read: stages as processes, lanes as threads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from ppscope.records import BurstRank, GpuSample, RankKey, StackSpans
from ppscope.session import Session
from ppscope.snapshot.window import RecordWindow

Json = dict[str, Any]

_GPU_LANE, _METER, _TIMED_LANE = 1_000_001, 1_000_002, 1_000_003
_CLASSES = ("replayed", "eager", "unknown", "memory", "communication")
_FLOW_NS = 2_000_000_000
"""A micro-batch that is seen no later than this on the next stage is taken for the same turn of it."""
_Turn = tuple[int, int, int, int, int]
"""(start ns, dp, pp, process, thread) of a micro-batch's work."""


def chrome_trace(window: RecordWindow, session: Session) -> Iterator[Json]:
    """Trace events, times in µs from the first span. Spans of main threads carry their phase, micro-batch and provenance."""
    records = window.records()
    starts = [record.start_ns for record in records if isinstance(record, StackSpans | BurstRank)]
    origin_ns = min(starts, default=session.extent()[0])
    processes = {key: number for number, key in enumerate(sorted(session.states), 1)}
    for key, number in processes.items():
        yield from _names(session, key, number)
    gpus = {state.rank.gpu.index: processes[key] for key, state in session.states.items() if state.rank.gpu is not None}
    turns: dict[int, list[_Turn]] = {}
    for key, number in processes.items():
        yield from _host(session, key, number, origin_ns, turns)
        yield from _timed(session, key, number, origin_ns)
    yield from _flows(turns, origin_ns)
    for record in records:
        if isinstance(record, BurstRank) and record.rank in processes:
            yield from _gpu(record, processes[record.rank], origin_ns)
        elif isinstance(record, GpuSample) and record.index in gpus:
            yield from _meters(record, gpus[record.index], origin_ns)


def _meta(name: str, process: int, thread: int, value: Json) -> Json:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": value}


def _names(session: Session, key: RankKey, process: int) -> Iterator[Json]:
    place = f"PP{key.pp} TP{key.tp}" + (f" DP{key.dp}" if key.dp else "")
    rank = session.states[key].rank
    yield _meta("process_name", process, 0, {"name": f"{place} (pid {rank.pid})"})
    yield _meta("process_sort_index", process, 0, {"sort_index": process})
    yield _meta("thread_name", process, rank.main_tid or rank.pid, {"name": "host: main thread"})


def _host(
    session: Session, key: RankKey, process: int, origin_ns: int, turns: dict[int, list[_Turn]]
) -> Iterator[Json]:
    rank = session.states[key].rank
    thread = rank.main_tid or rank.pid
    styles = session.phases()
    oldest, newest = session.extent()
    for span in session.spans(key, oldest, newest):
        style = styles[span.phase]
        arguments: Json = {"provenance": span.provenance, "kind": style.kind}
        if span.micro_batch is not None:
            arguments["micro_batch"] = span.micro_batch
            if key.tp == 0 and style.kind == "work":
                turns.setdefault(span.micro_batch, []).append((span.start_ns, key.dp, key.pp, process, thread))
        if span.stack is not None and span.stack >= 0:
            frames = session.stack_text(span.stack)
            arguments["function"] = frames[-1][0] if frames else "?"
        yield _slice(
            style.label, style.kind, process, thread, span.start_ns - origin_ns, span.end_ns - span.start_ns, arguments
        )


def _timed(session: Session, key: RankKey, process: int, origin_ns: int) -> Iterator[Json]:
    """Forwards on the GPU as the probe's CUDA events timed them."""
    exact = session.states[key].exact
    if exact is None or exact.gpu.extent is None:
        return
    yield _meta("thread_name", process, _TIMED_LANE, {"name": "GPU (probe)"})
    styles = session.phases()
    for span in exact.gpu.spans(*exact.gpu.extent):
        arguments: Json = {"provenance": "exact", "mode": span.mode, "batch_size": span.batch_size, "graph": span.graph}
        if span.micro_batch is not None:
            arguments["micro_batch"] = span.micro_batch
        start_ns, took_ns = span.start_ns - origin_ns, span.end_ns - span.start_ns
        yield _slice(styles[span.phase].label, "gpu", process, _TIMED_LANE, start_ns, took_ns, arguments)


def _slice(name: str, category: str, process: int, thread: int, start_ns: int, took_ns: int, arguments: Json) -> Json:
    return {
        "ph": "X", "name": name, "cat": category, "pid": process, "tid": thread, "ts": start_ns / 1000,
        "dur": took_ns / 1000, "args": arguments,
    }  # fmt: skip


def _flows(turns: dict[int, list[_Turn]], origin_ns: int) -> Iterator[Json]:
    """An arrow from a micro-batch's work on one stage to its work on the next."""
    number = 0
    for batch, seen in sorted(turns.items()):
        seen.sort()
        for (start, dp, pp, process, thread), after in pairwise(seen):
            if after[1] == dp and after[2] == pp + 1 and after[0] - start < _FLOW_NS:
                number += 1
                base = {"cat": "micro-batch", "name": f"micro-batch {batch}", "id": number}
                yield {**base, "ph": "s", "pid": process, "tid": thread, "ts": (start - origin_ns) / 1000}
                yield {
                    **base,
                    "ph": "f",
                    "bp": "e",
                    "pid": after[3],
                    "tid": after[4],
                    "ts": (after[0] - origin_ns) / 1000,
                }


def _gpu(record: BurstRank, process: int, origin_ns: int) -> Iterator[Json]:
    yield _meta("thread_name", process, _GPU_LANE, {"name": "GPU (profile burst)"})
    for kind, start, took, step in zip(
        record.gpu_classes, record.gpu_starts_ns, record.gpu_lengths_ns, record.gpu_steps, strict=False
    ):
        name = _CLASSES[kind] if 0 <= kind < len(_CLASSES) else "other"
        arguments: Json = {"provenance": "exact"}
        if 0 <= step < len(record.steps):
            arguments["step"] = record.steps[step].name
        yield _slice(name, "gpu", process, _GPU_LANE, record.start_ns + start - origin_ns, took, arguments)


def _meters(sample: GpuSample, process: int, origin_ns: int) -> Iterator[Json]:
    for name, value in (("power W", sample.power_w), ("utilisation %", sample.util_percent)):
        if value is not None:
            yield {
                "ph": "C", "name": name, "pid": process, "tid": _METER, "ts": (sample.at_ns - origin_ns) / 1000,
                "args": {name.rpartition(" ")[2]: value},
            }  # fmt: skip
