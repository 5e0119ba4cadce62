"""Stacks as folded lines (flame graph tools) and as a speedscope file; one profile a thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ppscope.records import AnyRecord, FrameDef, RankKey, StackDef, StackSpans

Json = dict[str, Any]
_Thread = tuple[RankKey, int, str]

SPEEDSCOPE = "https://www.speedscope.app/file-format-schema.json"


def _weights(
    records: Iterable[AnyRecord],
) -> tuple[dict[int, FrameDef], dict[int, StackDef], dict[_Thread, dict[int, int]]]:
    """Frames, stacks, and the nanoseconds of each stack in each thread; windows that overlap count once."""
    frames: dict[int, FrameDef] = {}
    stacks: dict[int, StackDef] = {}
    threads: dict[_Thread, dict[int, int]] = {}
    newest: dict[tuple[RankKey, int], int] = {}
    for record in records:
        if isinstance(record, FrameDef):
            frames[record.id] = record
        elif isinstance(record, StackDef):
            stacks[record.id] = record
        elif isinstance(record, StackSpans):
            into = threads.setdefault((record.rank, record.tid, record.thread), {})
            seen = newest.get((record.rank, record.tid), 0)
            for start, end, stack in zip(record.starts_ns, record.ends_ns, record.stacks, strict=False):
                took = end - max(start, seen)
                if took > 0:
                    into[stack] = into.get(stack, 0) + took
                    seen = end
            newest[(record.rank, record.tid)] = seen
    return frames, stacks, threads


def _thread_name(thread: _Thread) -> str:
    key, tid, name = thread
    return f"PP{key.pp} TP{key.tp}" + (f" DP{key.dp}" if key.dp else "") + f" {name or tid}"


def _plain(text: str) -> str:
    """A folded line ends at a line break, its frames at semicolons."""
    return "".join(" " if char.isspace() or not char.isprintable() else char for char in text).replace(";", ",")


def folded(records: Iterable[AnyRecord]) -> Iterator[str]:
    """Lines of `thread;outermost;…;innermost microseconds`, heaviest first."""
    frames, stacks, threads = _weights(records)
    for thread, weights in sorted(threads.items()):
        head = _plain(_thread_name(thread))
        for stack, took in sorted(weights.items(), key=lambda item: -item[1]):
            if took < 1000:
                continue
            names = [f"{_plain(f.function)} ({_plain(f.file)}:{f.line})" for f in _frames(frames, stacks, stack)]
            yield ";".join([head, *names]) + f" {took // 1000}"


def _frames(frames: dict[int, FrameDef], stacks: dict[int, StackDef], stack: int) -> list[FrameDef]:
    if stack not in stacks:
        return [FrameDef(-1, "?", "", None)]
    return [frames.get(frame, FrameDef(frame, "?", "", None)) for frame in stacks[stack].frames]


def speedscope(records: Iterable[AnyRecord], name: str) -> Json:
    """A speedscope file with one sampled profile a thread, weights in nanoseconds."""
    frames, stacks, threads = _weights(records)
    index: dict[tuple[str, str, int | None], int] = {}
    profiles = []
    for thread, weights in sorted(threads.items()):
        samples = [
            [index.setdefault((f.function, f.file, f.line), len(index)) for f in _frames(frames, stacks, stack)]
            for stack in weights
        ]
        total = sum(weights.values())
        profiles.append(
            {
                "type": "sampled", "name": _thread_name(thread), "unit": "nanoseconds", "startValue": 0, "endValue": total,
                "samples": samples, "weights": list(weights.values()),
            }
        )  # fmt: skip
    named = [
        {"name": function, "file": file, **({} if line is None else {"line": line})} for function, file, line in index
    ]
    return {
        "$schema": SPEEDSCOPE,
        "name": name,
        "exporter": "ppscope",
        "activeProfileIndex": 0,
        "shared": {"frames": named},
        "profiles": profiles,
    }
