"""py-spy's dumps: the few facts they are taken for, nothing else of the target's memory, and no stack that cannot be."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.records import AnyRecord
from ppscope.sources.stacks_dump_parse import DumpError, LoopFacts, parse_dump
from ppscope.sources.stacks_intern import MAX_TEXT, StackTable, clean
from ppscope.sources.stacks_sound import is_torn

SECRET = "sk-live-1234567890"
BATCH = "<ScheduleBatch at 0x7f4b2d40b750>"
RANK = {
    "server_args": f"<ServerArgs api_key={SECRET}>", "gpu_id": "3", "tp_rank": "1", "pp_rank": "2", "dp_rank": "None",
    "port": "30000", "pin": "4711",
}  # fmt: skip


def frame(name: str, **local: str) -> dict[str, Any]:
    named = [{"name": key, "addr": 1, "arg": False, "repr": value} for key, value in local.items()]
    return {"name": name, "filename": "s.py", "module": None, "short_filename": "s.py", "line": 5, "locals": named}


def dump(*frames: dict[str, Any], tid: int = 42, name: str | None = "MainThread") -> bytes:
    other = {
        "pid": 42,
        "thread_id": 9,
        "thread_name": "w",
        "os_thread_id": 50,
        "active": True,
        "owns_gil": False,
        "frames": [],
    }
    main = {"pid": 42, "thread_id": 1, "thread_name": name, "os_thread_id": tid, "active": True, "owns_gil": True}
    return json.dumps([other, main | {"frames": list(frames)[::-1]}]).encode()


def loop(*inner: dict[str, Any], **local: str) -> bytes:
    return dump(
        frame("<module>"),
        frame("run_scheduler_process", **RANK),
        frame("SchedulerPPMixin.event_loop_pp", **local),
        *inner,
    )


def refusal(data: bytes) -> str | None:
    try:
        read(data)
    except DumpError as error:
        return str(error)
    return None


def read(data: bytes) -> LoopFacts:
    return parse_dump(data, {42})


def test_rank_and_loop_facts() -> None:
    facts = read(
        loop(frame("_pp_commit_proxy_send_work"), mb_id="2", next_mb_id="3", cur_batch=BATCH, recv_reqs=SECRET)
    )
    assert facts.rank == {"gpu_id": 3, "tp_rank": 1, "pp_rank": 2}
    assert (facts.loop, facts.mb_id, facts.next_mb_id, facts.batch, facts.owns_gil) == (
        "event_loop_pp",
        2,
        3,
        True,
        True,
    )
    assert facts.frames[-1] == ("_pp_commit_proxy_send_work", "s.py", 5)


@pytest.mark.parametrize(
    ("callee", "text", "batch"),
    [
        ("_pp_launch_batch", BATCH, True),
        ("SchedulerPPMixin._pp_commit_send_output_work_and_preprocess_output_tensors", "None", False),
        ("ingest_requests", BATCH, None),  # stale: the last turn's
        ("get_next_batch_to_run", BATCH, None),
        ("_pp_commit_comm_work", BATCH, None),  # before it in one loop, after it in another
        ("on_idle", BATCH, None),
        ("_pp_launch_batch", "...", None),
    ],
)
def test_the_local_batch_counts_only_once_it_is_assigned(callee: str, text: str, batch: bool | None) -> None:
    assert read(loop(frame(callee), mb_id="0", cur_batch=text)).batch is batch


def test_no_local_batch_before_the_release_that_has_one() -> None:
    assert read(loop(frame("_pp_launch_batch"), mb_id="0")).batch is None


@pytest.mark.parametrize(
    ("text", "occupied"),
    [
        (f"[None, {BATCH}, None]", (False, True, False)),
        ("[None]", (False,)),
        (f"[{BATCH}, {BATCH}, <Schedul...", None),
        ("<cell at 0x7f>", None),
        ("[]", None),
        ("['secret']", None),
    ],
)
def test_the_old_loop_lists_its_micro_batches(text: str, occupied: tuple[bool, ...] | None) -> None:
    assert read(loop(frame("run_batch"), mb_id="0", mbs=text)).occupied == occupied


@pytest.mark.parametrize("text", ["None", "1.5", "999999999999", "-1", "'7'", "", "7 "])
def test_a_micro_batch_is_a_small_number_or_unknown(text: str) -> None:
    assert read(loop(mb_id=text)).mb_id is None


def test_a_scheduler_that_starts_has_a_stack_and_no_loop() -> None:
    facts = read(
        dump(frame("<module>"), frame("spawn_main"), frame("run_scheduler_process", **RANK), frame("load_model"))
    )
    assert (facts.loop, facts.mb_id) == (None, None)
    assert facts.rank["gpu_id"] == 3


def test_the_main_thread_by_number_then_by_name() -> None:
    whole = [frame("run_scheduler_process"), frame("event_loop_normal")]
    assert read(dump(*whole, name=None)).loop == "event_loop_normal"
    assert read(dump(*whole, tid=1)).loop == "event_loop_normal"
    with pytest.raises(DumpError, match="main thread"):
        read(dump(*whole, tid=1, name="worker"))


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("forward_native",),
        ("event_loop_pp", "get_next_batch_to_run", "point_to_point_pyobj"),
        ("event_loop_pp", "__enter__", "point_to_point_pyobj"),
        ("event_loop_pp", "_pp_process_batch_result", "_pp_send_recv_and_preprocess_output_tensors"),
        ("event_loop_pp", "run_batch", "recv_object"),
    ],
)
def test_stacks_that_no_code_path_has_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(DumpError, match="changing"):
        read(dump(*(frame(name) for name in names)))


@pytest.mark.parametrize(
    "names",
    [
        ("event_loop_pp", "recv_requests", "point_to_point_pyobj"),
        ("event_loop_pp", "forks_own_wrapper", "point_to_point_pyobj"),
        ("event_loop_pp", "point_to_point_pyobj"),
        ("event_loop_pp_disagg_decode", "A._pp_recv_pyobj_from_prev_stage", "point_to_point_pyobj"),
        ("event_loop_overlap", "a.<locals>.wrapper", "b.<locals>.wrapper", "Scheduler.run_batch"),
    ],
)
def test_stacks_of_every_release_and_of_forks_are_believed(names: tuple[str, ...]) -> None:
    assert not is_torn([(name, "f.py", 1) for name in names])


TEXT = st.text(max_size=12) | st.sampled_from(
    ["mb_id", "next_mb_id", "cur_batch", "mbs", "gpu_id", "MainThread", "event_loop_pp"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["frames", "name", "filename", "line", "locals", "repr", "os_thread_id", "thread_name"]),
            inner,
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_any_json_is_read_or_refused(value: object) -> None:
    said = refusal(json.dumps(value).encode())
    assert said is None or (said and "\n" not in said)


@given(at=st.integers(0, 900), junk=st.binary(max_size=4), cut=st.integers(0, 30))
def test_a_damaged_dump_is_read_or_refused_and_tells_no_secret(at: int, junk: bytes, cut: int) -> None:
    data = loop(frame("_pp_launch_batch", prompt=SECRET), mb_id="1", api_key=SECRET)
    damaged = data[:at] + junk + data[at + cut :]
    said = refusal(damaged)
    assert SECRET not in (said if said is not None else repr(read(damaged)))


def test_definitions_come_before_their_first_use_and_once() -> None:
    sent: list[AnyRecord] = []
    table = StackTable(sent.append)
    first = table.stack([("a", "f.py", 1), ("b", "f.py", 2)])
    assert table.stack([("a", "f.py", 1), ("b", "f.py", 2)]) == first
    assert table.stack([("a", "f.py", 1)]) != first
    assert [type(record).__name__ for record in sent] == ["FrameDef", "FrameDef", "StackDef", "StackDef"]


@given(
    st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.just("f"), st.integers(0, 3)), max_size=4), max_size=60),
    st.integers(1, 8),
)
def test_numbers_are_never_used_twice_and_the_table_stays_small(
    stacks: list[list[tuple[str, str, int]]], limit: int
) -> None:
    sent: list[Any] = []
    table = StackTable(sent.append, limit)
    for stack in stacks:
        number = table.stack(stack)
        frames = {r.id: (r.function, r.file, r.line or 0) for r in sent if type(r).__name__ == "FrameDef"}
        defined = {r.id: [frames[i] for i in r.frames] for r in sent if type(r).__name__ == "StackDef"}
        assert defined[number] == stack
        assert len(table) <= limit
    ids = [r.id for r in sent if type(r).__name__ == "StackDef"]
    assert len(ids) == len(set(ids))


@given(st.text() | st.text(min_size=400, max_size=3000))
def test_foreign_names_are_short_and_have_no_control_characters(text: str) -> None:
    shown = clean(text)
    assert len(shown) <= MAX_TEXT
    assert all(ord(c) >= 32 and ord(c) != 127 for c in shown)
    shown.encode("utf-8")


def test_hostile_names_lose_what_moves_a_terminal_and_long_files_keep_their_end() -> None:
    assert clean("a\x1b[2J\u202eb\x9b1m\ud800") == "a[2Jb1m"
    assert clean("x" * 9000 + "/managers/scheduler.py").endswith("/managers/scheduler.py")


def test_a_sample_survives_the_wire() -> None:
    sent: list[AnyRecord] = []
    StackTable(sent.append).stack([("f\ud800", "g", 0)])
    assert msgspec.msgpack.encode(sent)
