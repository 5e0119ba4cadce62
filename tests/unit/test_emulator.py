"""The parts of the emulator that need no process: load, GPU clock, counters, traces, pages and command lines."""

from __future__ import annotations

import gzip
import json
import math
import re
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.emulator.__main__ import options_of, parse, without
from ppscope.emulator.board import FIELDS, Board, create_board
from ppscope.emulator.gpu_timeline import GpuTimeline, GpuWork
from ppscope.emulator.gpus import THROTTLE_REASONS, EmulatedGpus
from ppscope.emulator.http_api import HttpApi
from ppscope.emulator.kineto import TraceRank, write_trace
from ppscope.emulator.metrics import metrics_page
from ppscope.emulator.options import Options, read_options
from ppscope.emulator.scenarios import MODEL_LAYERS, POWER_LIMIT_W, SCENARIOS
from ppscope.emulator.server_info import loads, server_info
from ppscope.emulator.srt.managers.emulated_load import Load
from ppscope.emulator.srt.model_executor.model_runner import forward_stacks, stage_layers
from ppscope.emulator.torch._ops import burn
from ppscope.trace.callers import find_callers

MS = 1_000_000


def make_options(folder: Path, scenario: str = "serial", pp_size: int = 8, tp_size: int = 1) -> Options:
    """Options of a server that nobody starts."""
    return Options(scenario_name=scenario, pp_size=pp_size, tp_size=tp_size, port=30000, folder=str(folder))


def make_board(folder: Path, ranks: int = 8) -> Board:
    """An empty board in `folder`."""
    create_board(str(folder / "board"), ranks)
    return Board(str(folder / "board"))


def test_options_survive_the_private_folder(tmp_path: Path) -> None:
    """What is written is what the launcher reads."""
    options = make_options(tmp_path, "eager")
    options.write()
    assert read_options(str(tmp_path)) == options


@pytest.mark.parametrize(
    ("scenario", "slots", "requests", "replays", "disabled"),
    [
        ("serial", 1, 8, False, True),
        ("healthy", 8, 64, True, False),
        ("eager", 8, 512, False, False),
        ("imbalanced", 8, 64, True, False),
        ("throttled", 8, 64, True, False),
        ("spinning", 4, 4, True, False),
        ("idle", 0, 0, True, False),
        ("slow-links", 8, 64, True, False),
        ("late-sync", 8, 64, True, False),
        ("busy-host", 8, 64, True, False),
        ("unpadded", 8, 88, False, False),
        ("leaky", 8, 64, True, False),
        ("blocked", 0, 0, True, False),
    ],
)
def test_a_scenario_is_its_story(
    tmp_path: Path, scenario: str, slots: int, requests: int, replays: bool, disabled: bool
) -> None:
    """Occupied slots, requests, replay or eager, and what the resolved settings say of it, at PP 8."""
    story = SCENARIOS[scenario]
    occupied = story.occupied_slots(8)
    assert (len(occupied), len(occupied) * story.slot_requests(8)) == (slots, requests)
    assert story.decode_replays(story.slot_requests(8)) is replays
    info = server_info(make_options(tmp_path, scenario), make_board(tmp_path), "python -m sglang.launch_server", 1.0)
    decode = info["cuda_graph_config"]["decode"]
    state = info["internal_states"][0]
    assert (decode["backend"] == "disabled") is disabled
    assert (state["decode_cuda_graph_bs"] == []) is disabled
    assert ("--disable-cuda-graph" in make_options(tmp_path, scenario).server_argv()) is disabled
    assert info["disable_cuda_graph"] is False, "the legacy field of 0.5.23 lies, and the emulator has to lie as well"
    assert json.loads(json.dumps(info)) == info


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
@pytest.mark.parametrize("pp_size", [2, 3, 8, 16])
def test_the_load_keeps_every_occupied_slot_full_and_touches_no_other(scenario: str, pp_size: int) -> None:
    """Requests that end are replaced in the same slot, by the same ones in every run."""
    story = SCENARIOS[scenario]
    load, again = Load(story, pp_size), Load(story, pp_size)
    for mb_id in range(pp_size):
        arrived = load.arrivals(mb_id, 0)
        assert arrived == again.arrivals(mb_id, 0)
        assert len(arrived) == (story.slot_requests(pp_size) if mb_id in story.occupied_slots(pp_size) else 0)
        assert all(req.mb_id == mb_id and not req.finished for req in arrived)
        assert load.arrivals(mb_id, story.slot_requests(pp_size)) == []


def test_a_limit_set_live_moves_new_requests_alone_and_keeps_their_number() -> None:
    """Those of slot 0 stay until they end; each that ends comes back in a slot with room."""
    load = Load(SCENARIOS["serial"], 8)
    slots = [load.arrivals(mb_id, 0) for mb_id in range(8)]
    load.limit = 1
    for _ in range(200):
        for mb_id, slot in enumerate(slots):
            slot[:] = [req for req in slot if not req.finished]
            slot.extend(load.arrivals(mb_id, len(slot), sum(map(len, slots))))
            for req in slot:
                req.output_tokens += 1
        assert sum(map(len, slots)) <= 8
    assert [len(slot) for slot in slots] == [1] * 8


@pytest.mark.parametrize(
    ("body", "now"),
    [({"pp_max_micro_batch_size": 2}, 2), ({"pp_max_micro_batch_size": 257}, 256), ({"tp_size": 2}, 256)],
)
def test_set_internal_state_takes_what_sglang_takes(tmp_path: Path, body: dict[str, int], now: int) -> None:
    told: list[int] = []
    api = HttpApi(make_options(tmp_path), make_board(tmp_path), "", 0, lambda start, fields: None, told.append)
    api.set_internal_state({"server_args": body})
    answer = api.answer("/server_info")
    assert answer is not None
    assert json.loads(answer[1])["internal_states"][0]["pp_max_micro_batch_size"] == now
    assert told == ([now] if now == 2 else [])


@given(pp_size=st.integers(2, 32))
def test_every_layer_is_on_one_stage(pp_size: int) -> None:
    """The split loses no layer while there are enough of them."""
    assert sum(stage_layers(rank, pp_size) for rank in range(pp_size)) == MODEL_LAYERS


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 60)), min_size=1, max_size=12))
def test_the_gpu_clock_is_one_queue(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bool, int, int]]
) -> None:
    """Work starts after its launch, its input and the work before it; nothing on a stream overlaps; counters never run back."""
    board = make_board(tmp_path_factory.mktemp("board"), 1)
    gpu = GpuTimeline(SCENARIOS["leaky"], 0, 8, board, 0)
    gpu.trace = []
    busy = 0.0
    host = gpu.free_ns
    for replayed, gap_ms, input_ms in steps:
        host += gap_ms * MS
        ready = gpu.receive(gpu.free_ns + input_ms * MS, 7)
        end = gpu.compute(replayed=replayed, host_start_ns=host, host_end_ns=host + 2 * MS)
        work = next(work for work in reversed(gpu.trace) if work.kind != "stray")
        assert gpu.trace[-1].end_ns == end
        assert work.start_ns >= max(ready, host)
        assert not replayed or work.start_ns >= host + 2 * MS
        assert board.gpu_busy_ns(0, work.start_ns) >= busy
        busy = board.gpu_busy_ns(0, end)
    for kinds in ({"graph", "eager", "stray"}, {"recv"}):
        stream = [work for work in gpu.trace if work.kind in kinds]
        assert all(first.end_ns <= second.start_ns for first, second in pairwise(stream))


def test_a_slow_link_and_a_late_last_stage_take_their_time(tmp_path: Path) -> None:
    """A message takes its share of the links' time; outputs reach the last stage alone behind the batch it just launched."""
    board = make_board(tmp_path, 8)
    for pp_rank in (0, 7):
        slow, late = (GpuTimeline(SCENARIOS[name], pp_rank, 8, board, pp_rank) for name in ("slow-links", "late-sync"))
        now = time.monotonic_ns()
        assert slow.receive(now, 6) - now >= SCENARIOS["slow-links"].transfer_ms / 8 * MS
        launched = late.compute(replayed=True, host_start_ns=now, host_end_ns=now + 50 * MS)
        assert (late.receive_output(now, 6) >= launched) is (pp_rank == 7)


def test_a_busy_host_burns_and_a_blocked_queue_admits_nobody(tmp_path: Path) -> None:
    began = time.thread_time_ns()
    burn(20)
    assert time.thread_time_ns() - began >= 20 * MS
    stuck = Load(SCENARIOS["blocked"], 4).stuck()
    assert len(stuck) == SCENARIOS["blocked"].stuck
    board = make_board(tmp_path)
    board.set(0, "queued", len(stuck))
    options = make_options(tmp_path, "blocked", pp_size=4)
    assert loads(options, board)["loads"][0]["num_waiting_reqs"] == len(stuck)
    assert 'sglang:num_queue_reqs{engine_type="unified"' in metrics_page(options, board)
    info = server_info(options, board, "", 1.0)
    assert (info["max_running_requests"], info["internal_states"][0]["pp_max_micro_batch_size"]) == (1, 1)


@pytest.mark.parametrize(("kind", "file"), [("graph", "decode_cuda_graph_runner.py"), ("eager", "deepseek_v2.py")])
def test_a_profile_with_stacks_names_a_line_for_every_launch(tmp_path: Path, kind: str, file: str) -> None:
    stacks = replace(forward_stacks(), step=("sglang/srt/managers/scheduler.py(1): run_batch",))
    rank = TraceRank(4242, "sglang::scheduler_PP1", 1, 8, 1, layers=2, duty=0.5, stacks=stacks)
    path = tmp_path / "x-TP-0-PP-1.trace.json.gz"
    write_trace(path, rank, [], [GpuWork(kind, 100 * MS, 110 * MS, 120 * MS, 150 * MS)], 0, 10**12)
    with gzip.open(path, "rt") as opened:
        events = json.load(opened)["traceEvents"]
    launches = [((e["pid"], e["tid"]), round(e["ts"] * 1000)) for e in events if e.get("cat") == "cuda_runtime"]
    callers = find_callers(path, launches)
    assert callers
    assert all(caller.line is not None and file in caller.line for caller in callers)
    if kind == "eager":
        assert {str(caller.line).partition(": ")[2] for caller in callers} == {"forward_core", "forward"}


def trace_events(folder: Path, work: list[GpuWork], spans: list[tuple[str, int, int]]) -> dict[str, Any]:
    """Write a trace and read it back."""
    rank = TraceRank(pid=4242, title="sglang::scheduler_PP1", rank=1, world_size=8, device=1, layers=7, duty=0.5)
    path = folder / "x-TP-0-PP-1.trace.json.gz"
    write_trace(path, rank, spans, work, 0, 10**12)
    with gzip.open(path, "rt") as file:
        loaded: dict[str, Any] = json.load(file)
    return loaded


@given(kinds=st.lists(st.sampled_from(["graph", "eager", "stray", "recv", "recv_output", "send"]), max_size=8))
def test_a_trace_has_kineto_rules(tmp_path_factory: pytest.TempPathFactory, kinds: list[str]) -> None:
    """One launch for each correlation, kernels after their launch, several kernels only under a graph launch, no overlap on a stream."""
    work = [
        GpuWork(kind, index * 100 * MS, (index * 100 + 10) * MS, (index * 100 + 20) * MS, (index * 100 + 50) * MS)
        for index, kind in enumerate(kinds)
    ]
    spans = [("step[DECODE bs=8]", item.host_start_ns, item.host_end_ns) for item in work]
    trace = trace_events(tmp_path_factory.mktemp("trace"), work, spans)
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    launches = {e["args"]["correlation"]: e for e in events if e["cat"] == "cuda_runtime"}
    kernels = [e for e in events if e["cat"] == "kernel"]
    assert len(launches) == sum(e["cat"] == "cuda_runtime" for e in events)
    fanout = Counter(kernel["args"]["correlation"] for kernel in kernels)
    assert set(fanout) == set(launches)
    for correlation, count in fanout.items():
        assert count == 1 or launches[correlation]["name"] == "cudaGraphLaunch"
    assert sum(launch["name"] == "cudaGraphLaunch" for launch in launches.values()) == kinds.count("graph")
    for kernel in kernels:
        assert kernel["ts"] >= launches[kernel["args"]["correlation"]]["ts"]
        assert kernel["dur"] > 0
        assert ("SendRecv" in kernel["name"]) is (kernel["tid"] != 7)
    compute = sorted((kernel["ts"], kernel["dur"]) for kernel in kernels if kernel["tid"] == 7)
    # Timestamps are rounded to the nanosecond, so neighbours may touch.
    assert all(ts + dur <= after + 0.002 for (ts, dur), (after, _) in pairwise(compute))
    assert sum(event["name"].startswith("step[") for event in events) == len(kinds)
    assert trace["baseTimeNanoseconds"] % 7_889_238_000_000_000 == 0
    assert trace["distributedInfo"] == {"backend": "nccl", "rank": 1, "world_size": 8}


@pytest.mark.parametrize("scenario", ["serial", "imbalanced"])
def test_metrics_page_has_a_row_for_every_stage(tmp_path: Path, scenario: str) -> None:
    """Names and labels of SGLang; the occupancy gauge is NaN unless the device timer is on."""
    board = make_board(tmp_path)
    board.set(3, "fwd_occupancy", 93.5)
    board.add(3, "decode_eager", 5)
    page = metrics_page(make_options(tmp_path, scenario), board)
    line = re.compile(r'(sglang:\w+)\{((?:\w+="[^"]*",?)+)\} (\S+)')
    rows = [match.groups() for match in map(line.fullmatch, page.splitlines()) if match]
    assert len(rows) == sum(not text.startswith("#") for text in page.splitlines())
    values = {
        (name, dict(re.findall(r'(\w+)="([^"]*)"', labels))["pp_rank"]): float(value)
        for name, labels, value in rows
        if not name.startswith("sglang:http_")
    }
    assert {stage for _, stage in values} == {str(stage) for stage in range(8)}
    occupancy = values["sglang:fwd_occupancy", "3"]
    assert occupancy == 93.5 if scenario == "imbalanced" else math.isnan(occupancy)
    assert 'pp_rank="3",tp_rank="0",mode="decode_none"} 5.0' in page
    assert 'sglang:http_requests_active{endpoint="/generate",method="POST"} 0.0' in page


def test_loads_answer_for_one_slot(tmp_path: Path) -> None:
    """/v1/loads counts the slot a stage is about to take up, as 0.5.23 does under PP."""
    board = make_board(tmp_path)
    board.set(0, "running_at_next", 8)
    assert loads(make_options(tmp_path), board)["loads"][0]["num_running_reqs"] == 8


def settle(gpus: EmulatedGpus, board: Board, busy_share: float, seconds: int = 40) -> list[list[dict[str, Any]]]:
    """Run the readings through emulated time with that share of busy time; return those of the second half."""
    readings: list[list[dict[str, Any]]] = []
    for rank in range(8):
        board.set(rank, "forward_passes", 1)
    for _ in range(seconds * 10):
        gpus._at_ns -= 100 * MS
        for rank in range(8):
            board.add(rank, "gpu_busy_ns", busy_share * 100 * MS)
        readings.append(gpus.sample())
    return readings[len(readings) // 2 :]


@pytest.mark.parametrize(
    ("scenario", "busy", "low_w", "high_w", "low_util", "high_util"),
    [
        ("serial", 0.025, 80, 95, 1, 5),
        ("healthy", 0.9, 420, 520, 80, 100),
        ("spinning", 0.45, 0.25 * POWER_LIMIT_W + 1, 190, 100, 100),
    ],
)
def test_gpu_readings_tell_the_story(
    tmp_path: Path, scenario: str, busy: float, low_w: float, high_w: float, low_util: int, high_util: int
) -> None:
    """Power and utilisation of all GPUs lie where the scenario wants them, with no throttle reason."""
    board = make_board(tmp_path)
    gpus = EmulatedGpus(make_options(tmp_path, scenario), board, list(range(100, 108)))
    for gpu in settle(gpus, board, busy)[-1]:
        assert low_w <= gpu["power_w"] <= high_w
        assert low_util <= gpu["util_percent"] <= high_util
        assert gpu["throttle_reasons"] == 0
        assert gpu["pids"] == [100 + gpu["index"]]


@pytest.mark.parametrize(("at_s", "throttled"), [(0.1, True), (2.9, True), (3.1, False), (4.9, False), (5.1, True)])
def test_one_gpu_is_throttled_three_fifths_of_the_time(tmp_path: Path, at_s: float, throttled: bool) -> None:
    """Stage 3's GPU, and no other."""
    gpus = EmulatedGpus(make_options(tmp_path, "throttled"), make_board(tmp_path), list(range(8)))
    assert [gpus._throttled(index, int(at_s * 1e9)) for index in range(8)] == [throttled and i == 3 for i in range(8)]
    assert THROTTLE_REASONS & 0x1 == 0


def test_board_reads_back_every_field(tmp_path: Path) -> None:
    """Rows and fields do not overlap."""
    board = make_board(tmp_path, 3)
    for row in range(3):
        for index, name in enumerate(FIELDS):
            board.set(row, name, row * 100.0 + index)
    assert [board.get(row, name) for row in range(3) for name in FIELDS] == [
        row * 100.0 + index for row in range(3) for index in range(len(FIELDS))
    ]


@pytest.mark.parametrize(
    "argv",
    [
        ["--scenario", "nonsense"],
        ["--pp", "1"],
        ["--pp", "33"],
        ["--tp", "0"],
        ["--kill-stage-after", "3"],
        ["--kill-stage-after", "x:1"],
        ["--pp", "2", "--kill-stage-after", "1:2"],
        ["--port", "http"],
    ],
)
def test_a_wrong_command_line_is_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2 and a message, before anything starts."""
    with pytest.raises(SystemExit) as refused:
        parse(argv)
    assert refused.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_command_line_becomes_options() -> None:
    """Every option arrives; the loading scenario brings its own slow start."""
    options = options_of(parse(["--scenario", "loading", "--pp", "4", "--tp", "2", "--kill-stage-after", "1.5:3"]))
    assert (options.pp_size, options.tp_size, options.kill_stage, options.kill_after_s) == (4, 2, 3, 1.5)
    assert options.load_seconds > 0
    assert options_of(parse(["--load-seconds", "0", "--scenario", "loading"])).load_seconds == 0


def test_without_drops_options_and_their_values() -> None:
    """Both spellings of a value, and flags."""
    argv = ["--pp", "4", "--port", "1", "--restart-after=3", "--die-with-parent", "--scenario", "eager"]
    kept = without(argv, ("--port", "--restart-after"), ("--die-with-parent",))
    assert kept == ["--pp", "4", "--scenario", "eager"]
