"""What other tools read, and paths made short in all of it."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.commands.export import exported
from ppscope.records import AnyRecord, BurstRank, Clock, FrameDef, RankKey, Server, Settings
from ppscope.snapshot.document import build
from ppscope.snapshot.pack import records_of
from ppscope.snapshot.paths import short, shorten_paths, shorten_text
from ppscope.snapshot.recorded import session_of
from ppscope.snapshot.wall import WallClock
from ppscope.snapshot.write import page
from tests.recordings import FRAMES, SECOND, START_NS, WALL_NS, recording

RECORDS = recording(4, 2)


def test_perfetto_has_stages_as_processes_and_the_time_that_was_seen() -> None:
    burst = BurstRank(
        1,
        RankKey(0, 1, 0),
        START_NS,
        START_NS + SECOND,
        (),
        [],
        [],
        [],
        [1, 0],
        [10_000, 50_000],
        [5_000, 6_000],
        [-1, -1],
        [0, 0],
        (),
        (),
        (2, 1, 1, 0, 0),
    )
    trace = json.loads(exported([*RECORDS, burst], "perfetto", "x"))
    events = trace["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert [name[:7] for name in names.values()] == ["PP0 TP0", "PP1 TP0"]
    session = session_of(RECORDS)
    oldest, newest = session.extent()
    for pid, key in zip(names, sorted(session.states), strict=True):
        slices = [event for event in events if event["ph"] == "X" and event["pid"] == pid and event["cat"] != "gpu"]
        spans = session.spans(key, oldest, newest)
        assert len(slices) == len(spans)
        assert sum(event["dur"] for event in slices) == pytest.approx(sum(s.end_ns - s.start_ns for s in spans) / 1000)
        assert {event["args"]["provenance"] for event in slices} == {"sampled", "inferred"}
    assert any(event["args"].get("micro_batch") == 0 for event in events if event["ph"] == "X")
    gpu = [event for event in events if event.get("cat") == "gpu"]
    assert [(event["name"], event["ts"], event["dur"]) for event in gpu] == [
        ("eager", 10.0, 5.0),
        ("replayed", 50.0, 6.0),
    ]
    flows = Counter(event["ph"] for event in events if event.get("cat") == "micro-batch")
    assert flows["s"] == flows["f"] > 0
    slices_at = {(event["pid"], event["tid"], event["ts"]) for event in events if event["ph"] == "X"}
    assert all(
        (event["pid"], event["tid"], event["ts"]) in slices_at for event in events if event.get("cat") == "micro-batch"
    )


def test_stacks_for_flame_graphs() -> None:
    total: Counter[str] = Counter()
    for line in exported(RECORDS, "folded", "x").decode().splitlines():
        stack, _, microseconds = line.rpartition(" ")
        total[stack.partition(";")[0]] += int(microseconds)
        assert stack.count(";") in (3, 4)
    assert total == {"PP0 TP0 MainThread": 4_000_000, "PP1 TP0 MainThread": 4_000_000}
    scope = json.loads(exported(RECORDS, "speedscope", "x"))
    frames = scope["shared"]["frames"]
    assert {frame["name"] for frame in frames} == {name for name, _, _ in FRAMES}
    for profile in scope["profiles"]:
        assert profile["unit"] == "nanoseconds"
        assert sum(profile["weights"]) == profile["endValue"] == 4 * SECOND
        assert len(profile["samples"]) == len(profile["weights"])
        assert all(0 <= frame < len(frames) for sample in profile["samples"] for frame in sample)


def test_gpu_samples_as_csv_and_json() -> None:
    rows = list(csv.DictReader(io.StringIO(exported(RECORDS, "gpu-csv", "x").decode())))
    samples = json.loads(exported(RECORDS, "gpu-json", "x"))["samples"]
    assert len(rows) == len(samples) == 4 * 10 * 2
    assert rows[0]["power_w"] == "86.0"
    assert rows[0]["memory_util_percent"] == ""
    assert samples[0]["memory_util_percent"] is None
    assert samples[0]["uuid"] == "GPU-0"
    assert [sample["at_ns"] for sample in samples] == sorted(sample["at_ns"] for sample in samples)


def test_wall_times_follow_a_clock_that_was_set() -> None:
    """Set back by an hour at about five seconds: the recording says so by its readings of both clocks."""
    hour = 3600 * SECOND
    clocks = [Clock(START_NS + at * SECOND, WALL_NS + at * SECOND - (hour if at > 5 else 0)) for at in range(1, 10, 2)]
    records = [*recording(10, 2)[:-1], *clocks]
    samples = json.loads(exported(records, "gpu-json", "x"))["samples"]
    assert len(samples) == 200
    for sample in samples:
        since = sample["at_ns"] - START_NS
        late = hour if since > 6 * SECOND else 0
        assert sample["wall_ns"] == WALL_NS + since - late
    rows = csv.DictReader(io.StringIO(exported(records, "gpu-csv", "x").decode()))
    assert [int(row["wall_ns"]) for row in rows] == [sample["wall_ns"] for sample in samples]
    document = build(records)
    assert document["made"]["wall_ns"] == WALL_NS + document["window"]["end_ns"] - START_NS - hour
    # A page keeps the last reading alone: what lies near it is right, not what lies nearer to the beginning.
    again = json.loads(exported(records_of(document), "gpu-json", "x"))["samples"]
    assert [sample["wall_ns"] for sample in again[-60:]] == [sample["wall_ns"] for sample in samples[-60:]]
    assert WallClock([]).at(START_NS) is None


@given(st.text(max_size=20))
def test_a_folded_line_is_one_line_whatever_the_name(name: str) -> None:
    records: list[AnyRecord] = [
        FrameDef(r.id, name, name, 1) if isinstance(r, FrameDef) else r for r in recording(1, 1)
    ]
    text = exported(records, "folded", "x").decode()
    assert len(text.split("\n")) == 2
    assert all(line.rpartition(" ")[2].isdigit() for line in text.split("\n")[:-1])


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (
            "/home/ann/env/lib/python3.12/site-packages/sglang/srt/managers/scheduler.py",
            "sglang/srt/managers/scheduler.py",
        ),
        ("/home/ann/src/sglang/python/sglang/srt/server_args.py", "sglang/srt/server_args.py"),
        ("/usr/lib/python3.12/threading.py", "threading.py"),
        ("/home/ann/models/Kimi-K2/", "…/Kimi-K2"),
        ("/data/x", "…/x"),
    ],
)
def test_a_path_shrinks_to_its_package(path: str, shown: str) -> None:
    assert short(path) == shown
    assert shorten_text(f"--model-path={path} --port 1") == f"--model-path={shown} --port 1"


@pytest.mark.parametrize(
    "text", ["http://host:30000/v1/models", "org/Model-7B", "a/b", "/dev/shm/x", "12/600 W", "", "DP2×PP4/TP8"]
)
def test_what_is_no_path_of_a_file_system_stays(text: str) -> None:
    assert shorten_text(text) == text


def test_no_absolute_path_is_left_in_a_page() -> None:
    records = [
        *recording(2, 2),
        Settings(
            START_NS,
            "resolved",
            {"model_path": "/home/ann/models/K2", "nested": {"chat_template": ["/home/ann/t.jinja"]}},
        ),
    ]
    server = next(record for record in records if isinstance(record, Server))
    assert server.sglang_path is not None
    shortened = shorten_paths(records)
    text = json.dumps(build(shortened), default=str)
    assert "/home/ann" not in text
    assert "/opt/py" not in text
    assert "\\u2026/K2" in text
    assert "sglang/srt/managers/scheduler_pp_mixin.py" in text
    assert [f["id"] for f in build(shortened)["view"]["findings"]] == [
        f["id"] for f in build(records)["view"]["findings"]
    ]
    assert page(build(shortened))
