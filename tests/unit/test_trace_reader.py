"""The trace reader: every layout reads the same, and damage costs only what was damaged."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ppscope.trace.reader import RankTrace, TraceError, read_trace
from tests.kineto import BASE_NS, LAYOUTS, Trace, layout_text

SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def sample(kernels: int = 12) -> Trace:
    trace = Trace(rank=1, world_size=2, title="sglang::scheduler_PP1")
    trace.span("step[DECODE bs=4]", 1000, 500_000)
    for index in range(kernels):
        trace.eager(
            f"void ns::kernel<int, {index}>(int, float*)", 2000 + index * 3000, 9000 + index * 4000, 3000 + index
        )
    trace.replay([("gemm", 100_000, 500), ("relu {braces}, [x]", 101_000, 700)], 60_000)
    trace.gpu(
        "Memcpy DtoH (Device -> Pinned)", 120_000, 900, trace.call("cudaMemcpyAsync", 70_000), category="gpu_memcpy"
    )
    return trace


def rows(trace: RankTrace) -> list[tuple[Any, ...]]:
    gpu = trace.gpu
    return [
        (
            trace.names[gpu.name[i]],
            gpu.start_ns[i],
            gpu.duration_ns[i],
            gpu.correlation[i],
            trace.lanes[gpu.lane[i]][1],
            gpu.kind[i],
        )
        for i in range(len(gpu))
    ]


def put(folder: Path, text: bytes, name: str = "trace.json") -> Path:
    path = folder / name
    path.write_bytes(text)
    return path


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_reads_the_same(layout: str, tmp_path: Path) -> None:
    trace = sample(3000)  # over a megabyte: several chunks
    got = read_trace(trace.write(tmp_path / "t.json.gz", layout))
    assert [row[:4] for row in rows(got)] == [
        (e["name"], round(e["ts"] * 1000), round(e["dur"] * 1000), e["args"]["correlation"])
        for e in trace.events
        if e["cat"] in ("kernel", "gpu_memcpy")
    ]
    assert (got.dropped_events, got.mended_events, got.damage) == (0, 0, [])
    assert got.titles == {100: "sglang::scheduler_PP1"}
    assert got.base_ns == (0 if layout == "bare" else BASE_NS)
    assert got.metadata.get("distributedInfo", {}).get("rank") == (None if layout == "bare" else 1)


@pytest.mark.parametrize("ts", [int, float, str])
def test_times_as_int_float_or_text_are_exact_nanoseconds(ts: type, tmp_path: Path) -> None:
    trace = sample()
    for event in trace.events:
        event["ts"] = ts(1_700_000_000_000_000 + int(event["ts"]))
    start = read_trace(trace.write(tmp_path / "t.json")).gpu.start_ns[0]
    assert start == (1_700_000_000_000_000 + 9) * 1000


def test_names_of_2021_mean_the_same(tmp_path: Path) -> None:
    old = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "cuda_runtime": "Runtime", "user_annotation": "Operator"}
    trace = sample()
    expected = rows(read_trace(trace.write(tmp_path / "new.json")))
    for event in trace.events:
        event["cat"] = old[event["cat"]]
        event["name"] = event["name"].replace("step[DECODE bs=4]", "ProfilerStep#16")
        event["tid"] = f"stream {event['tid']}" if event["cat"] in ("Kernel", "Memcpy") else str(event["tid"])
    got = read_trace(trace.write(tmp_path / "old.json"))
    assert rows(got) == expected
    assert (len(got.calls), len(got.spans)) == (14, 1)


@pytest.mark.parametrize("members", [2, 3])
def test_gzip_of_several_members_and_zero_padding(members: int, tmp_path: Path) -> None:
    text = sample(400).text()
    step = len(text) // members + 1
    packed = b"".join(gzip.compress(text[i : i + step]) for i in range(0, len(text), step)) + b"\0" * 512
    got = read_trace(put(tmp_path, packed, "t.json.gz"))
    assert (len(got.gpu), got.dropped_events, got.damage) == (403, 0, [])


DAMAGE = {
    "control character": lambda text: text.replace(b"kernel<int, 5>", b"kernel<int,\x07\n5>"),
    "bad utf-8": lambda text: text.replace(b"kernel<int, 5>", b"kernel<int,\xff\xfe5>"),
    "lone backslash": lambda text: text.replace(b"kernel<int, 5>", b"C:\\python\\x"),
    "lone surrogate": lambda text: text.replace(b"kernel<int, 5>", b"\\ud800 x"),
    "trailing comma": lambda text: text.replace(b'"device": 0', b'"device": 0,', 1),
    "number not a number": lambda text: text.replace(b'"stream": 7', b'"x": -nan, "y": Infinity, "stream": 7', 1),
    "null": lambda text: text.replace(b'"device": 0', b'"device": null', 1),
}
LOSS = {
    "bare quote": lambda text: text.replace(b"kernel<int, 5>", b'kernel "int 5'),
    "two bare quotes": lambda text: text.replace(b"kernel<int, 5>", b'kernel "int" 5'),
    "huge number": lambda text: text.replace(b'"ts": 29.0', b'"ts": 1e999', 1),
    "far future": lambda text: text.replace(b'"ts": 29.0', b'"ts": 8000000000000000', 1),
    "huge integer": lambda text: text.replace(b'"ts": 29.0', b'"ts": ' + b"9" * 40, 1),
    "time not a number": lambda text: text.replace(b'"ts": 29.0', b'"ts": NaN', 1),
    "missing brace": lambda text: text.replace(b'"correlation": 1006, ', b'"correlation": 1006, {', 1),
}


@pytest.mark.parametrize("layout", ["kineto", "line", "indent2"])
@pytest.mark.parametrize("damage", sorted(DAMAGE | LOSS))
def test_damage_costs_only_the_damaged_event(damage: str, layout: str, tmp_path: Path) -> None:
    trace = sample()
    text = trace.text(layout)
    broken = (DAMAGE | LOSS)[damage](text.replace(b'"correlation": 1006,\n', b'"correlation": 1006, '))
    assert broken != text
    got = read_trace(put(tmp_path, broken))
    lost = damage in LOSS
    assert got.dropped_events == lost
    assert got.base_ns == BASE_NS
    whole = {row[1:] for row in rows(read_trace(put(tmp_path, text, "whole.json")))}
    assert len(whole - {row[1:] for row in rows(got)}) == lost
    assert not {row[1:] for row in rows(got)} - whole


@pytest.mark.parametrize("stray", [b"], ", b'], "cat": "kernel", "name": "', b"]}, ", b"}, "])
def test_a_bracket_between_events_does_not_end_the_list(stray: bytes, tmp_path: Path) -> None:
    trace = sample(40)
    text = trace.text("line")
    at = text.index(b'{"ph"', len(text) // 2)
    got = read_trace(put(tmp_path, text[:at] + stray + text[at:]))
    whole = {row[1:] for row in rows(read_trace(put(tmp_path, text, "whole.json")))}
    assert len(whole - {row[1:] for row in rows(got)}) <= 1
    assert got.dropped_events >= 1
    assert got.base_ns == BASE_NS


def test_a_cut_file_loses_its_last_event_only(tmp_path: Path) -> None:
    text = sample(300).text()
    cut = text[: text.index(b"Memcpy DtoH") + 5]
    got = read_trace(put(tmp_path, cut))
    assert (len(got.gpu), got.dropped_events) == (302, 1)
    assert "cut off" in got.damage[0]


def test_cut_and_damaged_gzip_keep_what_came_before(tmp_path: Path) -> None:
    text = sample(3000).text()
    packed = gzip.compress(text)
    cut = read_trace(put(tmp_path, packed[: len(packed) // 2], "cut.json.gz"))
    available = zlib.decompressobj(31).decompress(packed[: len(packed) // 2]).count(b'"kernel"')
    assert available - 1 <= len(cut.gpu) <= available
    assert any("gzip" in line for line in cut.damage)
    checksum = read_trace(put(tmp_path, packed[:-8] + b"\0" * 8, "sum.json.gz"))
    assert len(checksum.gpu) == 3003
    assert "damaged" in checksum.damage[0]
    broken = read_trace(
        put(tmp_path, packed[: len(packed) // 2] + b"\xff" * 64 + packed[len(packed) // 2 + 64 :], "b.json.gz")
    )
    assert len(broken.gpu) >= available - 5
    assert broken.damage


def test_lists_of_objects_inside_an_event_do_not_split_it(tmp_path: Path) -> None:
    events = sample(40).all_events()
    for event in events:
        event["args"]["shapes"] = [
            {"ph": "X", "cat": "kernel", "name": "inner", "ts": 1},
            {"ph": "X"},
            {"name": 'q"}, {"ph": 1'},
        ]
    for layout in ("line", "kineto", "indent4"):
        got = read_trace(put(tmp_path, layout_text(events, {"baseTimeNanoseconds": 7}, layout)))
        assert (len(got.gpu), got.dropped_events, got.base_ns) == (43, 0, 7)


def test_unknown_calls_and_foreign_events_are_no_damage(tmp_path: Path) -> None:
    trace = sample()
    trace.call("INVALID", 5)
    trace.events += [{"ph": "C", "name": "counter", "pid": "x"}, {"ph": "s", "cat": "ac2g", "id": 4, "ts": 1.0}, {}]
    got = read_trace(trace.write(tmp_path / "t.json", "line"))
    assert (len(got.gpu), len(got.calls), got.dropped_events) == (15, 14, 0)


@pytest.mark.parametrize(
    "text", [b"", b"hello", b'{"a": 1}', b"\x7fELF\0\0", b"\x28\xb5\x2f\xfdzz", gzip.compress(b"{}")]
)
def test_files_that_are_no_traces_say_so_in_one_line(text: bytes, tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(put(tmp_path, text))
    assert "trace.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_progress(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "none.json")
    seen: list[tuple[int, int]] = []
    path = sample(2000).write(tmp_path / "t.json")
    read_trace(path, lambda done, size: seen.append((done, size)))
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
    assert len(seen) > 1


@SLOW
@given(data=st.data())
def test_any_damage_anywhere_never_crashes_and_never_invents(data: st.DataObject, tmp_path: Path) -> None:
    text = bytearray(sample(30).text(data.draw(st.sampled_from(["kineto", "line", "indent2", "metadata_last"]))))
    whole = {row[1:] for row in rows(read_trace(put(tmp_path, bytes(text), "whole.json")))}
    start = text.index(b'"cuda_runtime"')
    at = data.draw(st.integers(start, len(text) - 1))
    length = data.draw(st.integers(0, 12))
    text[at : at + length] = data.draw(st.binary(max_size=12))
    got = read_trace(put(tmp_path, bytes(text)))
    found = {row[1:] for row in rows(got)}
    # Twelve bytes touch at most two events, and may join them into one.
    assert len(whole - found) <= 2
    assert len(found - whole) <= 2


@SLOW
@given(cut=st.integers(0, 100_000), keep=st.booleans())
def test_a_cut_anywhere_keeps_every_whole_event(cut: int, keep: bool, tmp_path: Path) -> None:
    text = sample(30).text()
    start = text.index(b'"traceEvents": [') + 16
    cut = start + cut % (len(text) - start)
    packed = gzip.compress(text[:cut]) if keep else text[:cut]
    got = read_trace(put(tmp_path, packed))
    complete = [event for event in text[:cut].split(b"\n  },")[:-1] if b'"kernel"' in event or b'"gpu_memcpy"' in event]
    assert len(got.gpu) in (len(complete), len(complete) + 1)


@SLOW
@given(
    names=st.lists(st.text(max_size=40), min_size=1, max_size=30),
    layout=st.sampled_from(LAYOUTS),
    ascii_only=st.booleans(),
)
def test_any_kernel_name_survives(names: list[str], layout: str, ascii_only: bool, tmp_path: Path) -> None:
    names = [name.encode("utf-8", "replace").decode() for name in names]
    trace = Trace()
    for index, name in enumerate(names):
        trace.gpu(name, index * 10, 5, index)
    text = trace.text(layout)
    if not ascii_only and layout in ("line", "bare"):
        text = json.dumps(json.loads(text), ensure_ascii=False).encode()
    got = read_trace(put(tmp_path, text))
    assert [got.names[name] for name in got.gpu.name] == names
    assert got.dropped_events == 0
