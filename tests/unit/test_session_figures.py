"""Figures of the header that are told only while they are true: of a moment, of one source, of one replica."""

from __future__ import annotations

import dataclasses
import re

import pytest
from msgspec.structs import replace

from ppscope.commands.check import report_of
from ppscope.diagnose.check_report import CheckReport, to_json
from ppscope.diagnose.check_text import render
from ppscope.diagnose.findings import judge
from ppscope.diagnose.running import estimate_running
from ppscope.records import BatchLog, GpuDevice, GpuSample, LoadSample, LogNote, Metric, RankKey, Settings, StackSpans
from ppscope.session import Session
from ppscope.session.evidence import gather
from ppscope.session.load import LoadState
from tests.unit.pipeline_story import HEALTHY, IDLE, SERIAL, Pipeline, Story
from tests.unit.test_session_troubles import SECOND, START, Live


def after(story: object, seconds: int, name: str = "figures") -> tuple[Pipeline, Session]:
    stream = Pipeline(name)
    session = Session(stream, clock=lambda: stream.at_ns)
    for _ in range(seconds):
        stream.second(story)  # type: ignore[arg-type]
        session.poll()
    return stream, session


def test_a_server_that_works_is_not_idle_whatever_a_gauge_says() -> None:
    """Embeddings, and the first pass of a long prompt, are in no count of running requests."""
    stream, session = after(HEALTHY, 8)
    assert session.screen().header.state == "serving"
    session.load.add(LoadSample(stream.at_ns, "metrics", running=0, queued=0))
    assert session.screen().header.state == "serving"
    stream, session = after(IDLE, 12)
    assert session.screen().header.state == "idle"
    session.load.add(LoadSample(stream.at_ns, "metrics", running=3, queued=0))
    assert session.screen().header.state == "serving", "a pass of many seconds"


HANGS = dataclasses.replace(IDLE, phases={"wait_gpu": 0.7, "recv_activations": 0.3}, metrics=False)
BETWEEN = dataclasses.replace(IDLE, metrics=False)


def told(story: Story, *loads: LoadSample, seconds: int = 16) -> tuple[Session, CheckReport]:
    """A server after some seconds, its own figures told anew in each, with what `check` says of it."""
    stream = Pipeline("told")
    session = Session(stream, clock=lambda: stream.at_ns)
    for _ in range(seconds):
        stream.second(story)
        stream.waiting += [replace(load, at_ns=stream.at_ns) for load in loads]
        session.poll()
    return session, report_of(session)


@pytest.mark.parametrize(
    ("story", "in_flight", "said"),
    [
        (HANGS, 8, "8 requests are open and no forward pass began for 6 s: the host phases say where the stages wait."),
        (HANGS, 1, "1 request is open and no forward pass began for 6 s: the host phases say where the stages wait."),
        (HANGS, None, "A stage waits with a batch and no forward pass began for 6 s: the host phases say where the stages wait."),
        (BETWEEN, 8, "8 requests are open and no forward pass began for 6 s: the host phases say where the stages wait."),
        (BETWEEN, 0, None),
        (BETWEEN, None, None),
    ],
)  # fmt: skip
def test_a_pipeline_that_hangs_with_a_batch_is_not_idle(story: Story, in_flight: int | None, said: str | None) -> None:
    session, report = told(story, LoadSample(0, "metrics", queued=0, tokens_per_s=0.0, in_flight=in_flight))
    state = "idle" if said is None else "serving"
    assert session.screen().header.state == to_json(report)["server"]["state"] == state
    text = " ".join(render(report).split())
    assert ("The server is idle" in text) is (said is None)
    assert said is None or said in text
    assert report.findings == session.screen().findings == ()


def test_a_queue_before_stages_that_wait_with_a_batch_is_told_so() -> None:
    blocked = LoadSample(0, "metrics", queued=3, tokens_per_s=0.0, in_flight=11)
    for story, batch in ((HANGS, True), (BETWEEN, False)):
        _, report = told(story, blocked)
        (finding,) = report.findings
        assert finding.id == "server.queue_blocked"
        assert ("no stage has a batch" in finding.summary) is not batch
        assert ("no forward pass began for 6 s: stages wait with a batch" in finding.summary) is batch
        assert any(line.startswith("stage 0: wait: GPU 7") for line in finding.evidence) is batch


def test_the_last_throughput_that_the_server_keeps_for_ever_is_not_of_now() -> None:
    kept, queue = LoadSample(0, "server_info", tokens_per_s=24.7), LoadSample(0, "loads", queued=3, tokens_per_s=0.0)
    session, report = told(BETWEEN, kept, queue)
    assert session.screen().header.load.tokens_per_s == report.evidence.load.tokens_per_s == 0.0
    assert [finding.id for finding in report.findings] == ["server.queue_blocked"]
    session, report = told(BETWEEN, kept)
    assert session.screen().header.load.tokens_per_s is report.evidence.load.tokens_per_s is None
    session, _ = told(dataclasses.replace(HEALTHY, metrics=False, sizes=(0, 0, 0, 0)), kept)
    assert session.screen().header.load.tokens_per_s == 24.7, "while passes are seen it may be"


def test_the_last_throughput_does_not_say_that_requests_run() -> None:
    load = LoadState()
    load.add(LoadSample(0, "server_info", tokens_per_s=24.7))
    load.add(LoadSample(0, "metrics", queued=0, micro_batch=4.0, in_flight=0))
    assert load.view(SECOND, None, 2.0).running == 0


@pytest.mark.parametrize(("clock_mhz", "found"), [(1890, set()), (1290, {"gpu.throttled"})])
def test_a_clock_is_of_the_readings_at_work(clock_mhz: int, found: set[str]) -> None:
    """At its power limit a third of the time, and idle for the rest, when clocks fall to 345 MHz."""
    stream, session = after(HEALTHY, 20)
    held = session.gpus.samples[1]
    held.clear()
    session.gpus.add_device(GpuDevice(1, "GPU-1", "NVIDIA B200", 600.0, sm_clock_max_mhz=1980))
    for number in range(90):
        capped = number % 3 == 0
        at = stream.at_ns - (90 - number) * SECOND // 10
        held.append(
            GpuSample(
                1, at, power_w=450.0, sm_clock_mhz=clock_mhz if capped else 345, throttle_reasons=0x4 if capped else 0x1
            )
        )
    of = gather(session, stream.at_ns)
    assert of is not None
    judged = judge(of)
    assert {finding.id for finding in judged} == found
    assert all(f"SM clock {clock_mhz} MHz of 1980" in finding.evidence[0] for finding in judged)


@pytest.mark.parametrize(
    ("sizes", "in_flight", "found"),
    [
        ((1, 1, 1, 1), 1, set()),
        ((2, 2, 2, 2), 3, set()),
        ((1, 0, 0, 0), 1, {"load.too_few_requests"}),
        ((1, 1, 1, 0), 3, {"load.too_few_requests"}),
    ],
)
def test_a_request_of_several_prompts_is_more_than_one_of_them(
    sizes: tuple[int, ...], in_flight: int, found: set[str]
) -> None:
    size = float(max(sizes))
    counted = LoadSample(0, "metrics", queued=0, tokens_per_s=300.0, micro_batch=size, in_flight=in_flight)
    _, report = told(dataclasses.replace(HEALTHY, sizes=sizes, metrics=False), counted, seconds=20)
    assert {finding.id for finding in report.findings} == found


def test_a_long_look_is_judged_by_its_last_minute_and_says_so() -> None:
    _, report = told(SERIAL, seconds=90)
    lines = [line for finding in report.findings for line in finding.evidence if " over " in line]
    spans = [float(span) for line in lines for span in re.findall(r"over (\d+) s", line)]
    assert spans
    assert max(spans) <= 60
    made = to_json(report)
    assert (made["seconds"], made["judged_seconds"]) == (89.0, 60.0)
    assert "seen for 89 s, judged by its last 60 s" in render(report)
    _, short = told(SERIAL, seconds=9)
    assert "seen for 8 s\n" in render(short)


@pytest.mark.parametrize(("producing", "running"), [(False, 0), (True, 16)])
def test_no_open_request_while_tokens_come_is_not_no_request(producing: bool, running: int) -> None:
    """0.5.9 counts a request down when its answer begins to stream."""
    assert estimate_running(4.0, 4.0, 0, 0, producing=producing).estimate == running


def test_a_gauge_of_occupancy_that_outlives_the_work_is_not_busy() -> None:
    for story, busy in ((HEALTHY, 0.87), (IDLE, None)):
        stream, session = after(story, 12)
        for pp in range(4):
            session.load.add_metric(Metric(stream.at_ns, "sglang:fwd_occupancy", (("pp_rank", str(pp)),), 87.0))
        assert {row.busy for row in session.screen().stages} == {busy}


def test_the_logs_load_ends_soon_after_its_lines() -> None:
    load = LoadState()
    for line in range(8):
        load.add(LoadSample(line * 2 * SECOND, "log", tokens_per_s=900.0))
    last = 14 * SECOND
    assert load.view(last + 4 * SECOND, None).tokens_per_s == 900.0
    assert load.view(last + 6 * SECOND, None).tokens_per_s is None
    slow = LoadState()
    for line in range(8):
        slow.add(LoadSample(line * 15 * SECOND, "log", tokens_per_s=9.0))
    assert slow.view(7 * 15 * SECOND + 20 * SECOND, None).tokens_per_s == 9.0


def test_replicas_that_log_at_once_do_not_shorten_what_their_lines_hold() -> None:
    load = LoadState()
    for line in range(6):
        for _ in range(8):
            load.add(LoadSample(line * 13 * SECOND, "log", tokens_per_s=9.0))
    assert load.view(5 * 13 * SECOND + 12 * SECOND, None).tokens_per_s == 9.0


def test_a_draft_makes_several_tokens_a_pass_so_batches_are_taken_from_their_lines() -> None:
    lines = [
        BatchLog(
            START + n * SECOND, START + n * SECOND, "decode", None, 0, None, running=30, tokens_per_s=3600.0, graph=True
        )
        for n in range(12)
    ]
    for algorithm, size in ((None, 90.0), ("EAGLE", 30.0)):
        values: dict[str, object] = {"decode_log_interval": 40, "speculative_algorithm": algorithm}
        live = Live(Settings(START, "resolved", values), *lines)
        live.now_ns = START + 11 * SECOND
        found = gather(live.session, live.now_ns)
        assert found is not None
        assert found.micro_batch == pytest.approx(size)


def test_what_was_said_at_start_up_outlives_what_is_said_every_second() -> None:
    live = Live(
        LogNote(START, "capture", "Capture cuda graph bs [1, 2]"),
        LogNote(START, "graph_disabled", "Disable cuda graph"),
    )
    live.say(*[LogNote(START + n * SECOND, "retract", f"KV cache pool is full. Retract {n}") for n in range(1000)])
    kinds = [note.kind for note in live.session.settings.notes]
    assert kinds[:2] == ["capture", "graph_disabled"]
    assert len(kinds) < 500


def test_threads_that_ended_are_forgotten() -> None:
    """A library that begins a thread every few seconds, for a day."""
    live = Live()
    key = RankKey(0, 0, 0)
    for number in range(300):
        at = START + number * 10 * SECOND
        live.now_ns = at
        live.say(StackSpans(key, 1000 + number, f"Thread-{number}", at, at + SECOND, SECOND, [at], [at + SECOND], [1]))
    state = live.session.states[key]
    assert len(state.threads) == len(state.thread_names) < 12


@pytest.mark.parametrize(
    ("passes", "lines", "share", "decodes"),
    [
        ({"decode_none": 3.0}, [], None, True),
        ({"decode_none": 5.0, "decode_cuda_graph": 5.0}, [], 0.5, True),
        ({"prefill_none": 9.0}, [], None, False),
        ({}, [False], None, True),
        ({"prefill_none": 9.0}, [False, False], 0.0, True),
        ({}, [False, True], 0.5, True),
        ({}, [], None, None),
    ],
)
def test_a_moment_is_no_share(
    passes: dict[str, float], lines: list[bool], share: float | None, decodes: bool | None
) -> None:
    live = Live(*[BatchLog(START, None, "decode", None, 0, None, running=1, graph=graph) for graph in lines])
    for mode, count in passes.items():
        for at, value in ((START, 0.0), (START + SECOND, count)):
            live.say(Metric(at, "sglang:cuda_graph_passes_total", (("mode", mode), ("pp_rank", "0")), value))
    live.now_ns = START + 2 * SECOND
    found = gather(live.session, live.now_ns)
    assert found is not None
    assert (found.replay_share, found.decodes) == (share, decodes)


def test_requests_of_all_replicas_are_estimated_from_the_slots_of_one() -> None:
    _, session = after(HEALTHY, 8)
    assert session.server is not None
    one = session.occupied(session.occupancy())
    session.server = replace(session.server, dp_size=2)
    assert one is not None
    assert session.occupied(session.occupancy()) == 2 * one
