"""Records as columns of a JSON document, and back without loss.

Stacks, GPU readings and spans are most of a recording: they become columns by name, with times as differences, which a page can
draw as they are and which compress to a few bytes a span. Every other record stays a list with its tag first, as it is on the wire.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeVar, get_args

import msgspec

from ppscope.records import (
    AnyRecord,
    BurstRank,
    FrameDef,
    GpuSample,
    RankKey,
    Record,
    StackDef,
    StackSpans,
)
from ppscope.snapshot.window import in_time_order

Json = dict[str, Any]
Made = TypeVar("Made", bound=Record)

_GPU_FIELDS = tuple(name for name in GpuSample.__struct_fields__ if name not in ("index", "at_ns"))
_COLUMN_KINDS: dict[str, type[Record]] = {
    str(kind.__struct_config__.tag): kind
    for kind in get_args(AnyRecord)
    if "list[int]" in map(str, kind.__annotations__.values()) and kind is not StackSpans
}
"""Records that hold columns of their own: host samples, profile bursts, and what a later version adds."""
_PAIR = frozenset({"starts_ns", "ends_ns"})
_FAR_NS = 2**62
_CHUNK_NS = 1_000_000_000


class UnreadableDocument(ValueError):
    """Embedded data that does not have the form it claims; the message is the end of a sentence."""


def differences(values: Sequence[int]) -> list[int]:
    """The first value, then each value's distance from the one before."""
    return [value - before for value, before in zip(values, (0, *values), strict=False)]


def sums(values: Sequence[int]) -> list[int]:
    """The inverse of `differences`."""
    return list(accumulate(values))


class _Track:
    """The spans of one thread, put together from the windows they came in."""

    def __init__(self, record: StackSpans) -> None:
        self.first = record
        self.end_ns = record.start_ns
        self.period_ns = record.period_ns
        self.samples: int | None = 0
        self.seen_ns = 0
        self.failed_ns: float | None = None
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.stacks: list[int] = []

    def add(self, record: StackSpans, from_ns: int) -> None:
        newest = max(self.ends[-1] if self.ends else 0, from_ns)
        for start, end, stack in zip(record.starts_ns, record.ends_ns, record.stacks, strict=False):
            begin = max(start, newest)  # windows overlap by design
            if end <= begin:
                continue
            self.starts.append(begin)
            self.ends.append(end)
            self.stacks.append(stack)
            newest = end
        self.end_ns = max(self.end_ns, record.end_ns)
        self.period_ns = max(self.period_ns, record.period_ns)
        length_ns = record.end_ns - record.start_ns
        self.seen_ns += length_ns
        if record.failed is not None:
            self.failed_ns = (self.failed_ns or 0.0) + record.failed * length_ns
        self.samples = None if record.samples is None or self.samples is None else self.samples + record.samples

    def pack(self, origin_ns: int) -> Json:
        before = [origin_ns, *self.ends[:-1]]
        return {
            "rank": list(msgspec.structs.astuple(self.first.rank)),
            "tid": self.first.tid,
            "thread": self.first.thread,
            "start": max(self.first.start_ns, origin_ns) - origin_ns,
            "end": self.end_ns - origin_ns,
            "period_ns": self.period_ns,
            "samples": self.samples,
            # One share for the whole track: what single windows lost says little.
            "failed": None if self.failed_ns is None else round(self.failed_ns / max(self.seen_ns, 1), 4),
            "gap": [start - end for start, end in zip(self.starts, before, strict=False)],
            "took": [end - start for start, end in zip(self.starts, self.ends, strict=True)],
            "stack": self.stacks,
        }


def pack(records: Iterable[AnyRecord], origin_ns: int, from_ns: int = 0) -> Json:
    """Records as `stacks`, `tracks`, `gpu_samples`, `bursts`, `columns` and `records`; times of columns count from `origin_ns`.

    Spans are cut at `from_ns`. Overlapping windows of one thread become one track, as the session makes of them.
    """
    frames: list[FrameDef] = []
    stacks: list[StackDef] = []
    tracks: dict[tuple[RankKey, int], _Track] = {}
    gpus: dict[int, list[GpuSample]] = {}
    columns: list[Record] = []
    rest: list[AnyRecord] = []
    for record in records:
        if isinstance(record, FrameDef):
            frames.append(record)
        elif isinstance(record, StackDef):
            stacks.append(record)
        elif isinstance(record, StackSpans):
            track = tracks.setdefault((record.rank, record.tid), _Track(record))
            track.add(record, from_ns)
        elif isinstance(record, GpuSample):
            gpus.setdefault(record.index, []).append(record)
        elif record.__struct_config__.tag in _COLUMN_KINDS:
            columns.append(record)
        else:
            rest.append(record)
    return {
        "stacks": _pack_stacks(frames, stacks),
        "tracks": [track.pack(origin_ns) for _, track in sorted(tracks.items(), key=lambda item: item[0])],
        "gpu_samples": [_pack_gpu(index, samples, origin_ns) for index, samples in sorted(gpus.items())],
        "bursts": [_pack_columns(record) for record in columns if isinstance(record, BurstRank)],
        "columns": [_pack_columns(record) for record in columns if not isinstance(record, BurstRank)],
        "records": [msgspec.to_builtins(record) for record in rest],
    }


def _pack_stacks(frames: list[FrameDef], stacks: list[StackDef]) -> Json:
    texts: dict[str, int] = {}
    return {
        "frames": {
            "id": [frame.id for frame in frames],
            "function": [texts.setdefault(frame.function, len(texts)) for frame in frames],
            "file": [texts.setdefault(frame.file, len(texts)) for frame in frames],
            "line": [frame.line for frame in frames],
        },
        "id": [stack.id for stack in stacks],
        "frames_of": [list(stack.frames) for stack in stacks],
        "texts": list(texts),
    }


def _pack_gpu(index: int, samples: list[GpuSample], origin_ns: int) -> Json:
    packed: Json = {"index": index, "at": differences([sample.at_ns - origin_ns for sample in samples])}
    for name in _GPU_FIELDS:
        values = [getattr(sample, name) for sample in samples]
        if any(value is not None for value in values):
            same = all(value == values[0] for value in values)
            packed[name] = {"all": values[0]} if same else values
    return packed


@lru_cache(maxsize=64)
def _times_of(kind: type[Record]) -> list[str]:
    """The columns of a record that hold what grows: times, turns of the loop."""
    return [
        name
        for name, type_ in kind.__annotations__.items()
        if str(type_) == "list[int]" and (name == "turns" or (name.endswith("_ns") and not name.endswith("lengths_ns")))
    ]


def _pack_columns(record: Record) -> Json:
    packed: Json = msgspec.to_builtins(msgspec.structs.asdict(record))
    names = _times_of(type(record))
    packed |= {name: differences(packed[name]) for name in names if name not in _PAIR}
    if set(names) >= _PAIR:
        # Calls follow on one another: a start is where the row before ended, and only lengths remain to be told.
        starts, ends = packed["starts_ns"], packed["ends_ns"]
        packed["starts_ns"] = [start - before for start, before in zip(starts, [0, *ends], strict=False)]
        packed["ends_ns"] = [end - start for start, end in zip(starts, ends, strict=True)]
    else:
        packed |= {name: differences(packed[name]) for name in names if name in _PAIR}
    return {"tag": record.__struct_config__.tag, **packed}


def records_of(document: Mapping[str, Any]) -> list[AnyRecord]:
    """The records that were packed, facts first. Raises UnreadableDocument; a record of an unknown tag is left out."""
    try:
        origin_ns = int(document["window"]["origin_ns"])
        return in_time_order(
            [
                *(record for item in document["records"] if (record := _record(item)) is not None),
                *_unpack_stacks(document["stacks"]),
                *(
                    _unpack_columns(item)
                    for item in (*document["bursts"], *document["columns"])
                    if item["tag"] in _COLUMN_KINDS
                ),
                *(sample for item in document["gpu_samples"] for sample in _unpack_gpu(item, origin_ns)),
                *(window for item in document["tracks"] for window in _unpack_track(item, origin_ns)),
            ]
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, msgspec.MsgspecError) as error:
        raise UnreadableDocument(
            f"holds data of another form than it claims ({type(error).__name__}: {error})"
        ) from None


def _record(item: object) -> AnyRecord | None:
    try:
        record: AnyRecord = msgspec.convert(item, AnyRecord)
        return record
    except msgspec.ValidationError:
        return None


def _made(kind: type[Made], fields: Mapping[str, object]) -> Made:
    """A record of these fields, each checked against its type; what an older file lacks has its default."""
    row = [kind.__struct_config__.tag, *(fields.get(name, default) for name, default in _defaults(kind))]
    return msgspec.convert(row, kind)


def _times(values: Sequence[int], origin_ns: int) -> list[int]:
    times = [value + origin_ns for value in values]
    if times and not -_FAR_NS < min(times) <= max(times) < _FAR_NS:
        raise ValueError("a time out of range")
    return times


def _unpack_stacks(packed: Mapping[str, Any]) -> Iterable[AnyRecord]:
    texts, frames = packed["texts"], packed["frames"]
    columns = (frames["id"], frames["function"], frames["file"], frames["line"])
    for number, function, file, line in zip(*columns, strict=True):
        fields = {"id": number, "function": texts[function], "file": texts[file], "line": line}
        yield _made(FrameDef, fields)
    for number, of in zip(packed["id"], packed["frames_of"], strict=True):
        yield _made(StackDef, {"id": number, "frames": of})


def _unpack_track(packed: Mapping[str, Any], origin_ns: int) -> Iterable[StackSpans]:
    """Windows of about a second, as they came: so a session judges what it sees in the order it was seen."""
    last_ns = packed["end"]
    chunk = _Chunk(packed["start"])
    samples = packed["samples"]
    at_ns = 0
    rows = zip(packed["gap"], packed["took"], packed["stack"], strict=True)
    for gap, took, stack in rows:
        start_ns = at_ns + gap
        at_ns = start_ns + took
        if chunk.stacks and at_ns - chunk.start_ns > _CHUNK_NS:
            yield chunk.made(packed, origin_ns, chunk.ends[-1], samples)
            samples = None if samples is None else 0
            chunk = _Chunk(chunk.ends[-1])
        chunk.starts.append(start_ns)
        chunk.ends.append(at_ns)
        chunk.stacks.append(stack)
    yield chunk.made(packed, origin_ns, max(last_ns, chunk.ends[-1] if chunk.ends else last_ns), samples)


class _Chunk:
    def __init__(self, start_ns: int) -> None:
        self.start_ns = start_ns
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.stacks: list[int] = []

    def made(self, packed: Mapping[str, Any], origin_ns: int, end_ns: int, samples: int | None) -> StackSpans:
        start_ns, end_ns = _times((self.start_ns, end_ns), origin_ns)
        return _made(
            StackSpans,
            {
                **{name: packed[name] for name in ("rank", "tid", "thread", "period_ns")},
                "start_ns": start_ns,
                "end_ns": end_ns,
                "starts_ns": _times(self.starts, origin_ns),
                "ends_ns": _times(self.ends, origin_ns),
                "stacks": self.stacks,
                "samples": samples,
                "failed": packed.get("failed"),
            },
        )


def _unpack_gpu(packed: Mapping[str, Any], origin_ns: int) -> Iterable[GpuSample]:
    at = _times(sums(packed["at"]), origin_ns)
    columns: Json = {}
    for name in _GPU_FIELDS:
        values = packed.get(name)
        columns[name] = [values["all"]] * len(at) if isinstance(values, dict) else values or [None] * len(at)
    for row, at_ns in enumerate(at):
        fields: Json = {name: columns[name][row] for name in _GPU_FIELDS}
        yield _made(GpuSample, {"index": packed["index"], "at_ns": at_ns, **fields})


def _unpack_columns(packed: Mapping[str, Any]) -> AnyRecord:
    kind = _COLUMN_KINDS[packed["tag"]]
    values = {name: packed.get(name, default) for name, default in _defaults(kind)}
    names = _times_of(kind)
    times = {name: _times(sums(values[name]), 0) for name in names if not (name in _PAIR and set(names) >= _PAIR)}
    if set(names) >= _PAIR:
        starts, ends = [], [0]
        for gap, took in zip(values["starts_ns"], values["ends_ns"], strict=True):
            starts.append(ends[-1] + gap)
            ends.append(starts[-1] + took)
        times |= {"starts_ns": _times(starts, 0), "ends_ns": _times(ends[1:], 0)}
    made: Any = _made(kind, {**values, **times})
    record: AnyRecord = made
    return record


@lru_cache(maxsize=64)
def _defaults(kind: type[Record]) -> tuple[tuple[str, Any], ...]:
    """Field names with what stands in for one that an older file does not have."""
    return tuple(
        (field.name, field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory())
        for field in msgspec.structs.fields(kind)
    )
