"""From a stream to findings: judged in the stream's own time, the same live and replayed, and dumps asked for when they are thin."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppscope.records import (
    AnyCommand,
    AnyRecord,
    BatchLog,
    Clock,
    DumpNow,
    FrameDef,
    GpuSample,
    Hello,
    HostSamples,
    LoadSample,
    LoopSample,
    Metric,
    Rank,
    RankKey,
    Rules,
    Server,
    Settings,
    StackDef,
    StackSpans,
)
from ppscope.session import Session
from ppscope.session.dumping import FIRST_BURST, Dumping, burst
from ppscope.session.evidence import gather
from ppscope.sources.rules_model import Condition, GraphRule, RuleBook, literal

SECOND = 1_000_000_000
START = 1_000 * SECOND
STAGES = 4
MIXIN = "sglang/srt/managers/scheduler_pp_mixin.py"
FRAMES = (
    FrameDef(1, "run_scheduler_process", "sglang/srt/managers/scheduler.py", 1),
    FrameDef(2, "event_loop_pp", MIXIN, 192),
    FrameDef(3, "synchronize", "torch/cuda/streams.py", 231),
    FrameDef(4, "run_batch", "sglang/srt/managers/scheduler.py", 2),
    FrameDef(5, "execute", "sglang/srt/model_executor/runner/eager_runner.py", 200),
    StackDef(1, (1, 2, 3)),
    StackDef(2, (1, 2, 4, 5)),
)
RULE = GraphRule(
    "decode", "srt/server_args.py", 2553, "handle", "attention_backend == 'torch_native'",
    Condition("==", (Condition("setting", name="attention_backend"), literal("torch_native"))),
)  # fmt: skip
BOOK = RuleBook("0.5.23", "/x", "config", (RULE,), frozenset({"attention_backend"}))


def server(**changes: object) -> Server:
    ranks = tuple(Rank(RankKey(0, pp, 0), 100 + pp, 1, f"sglang::scheduler_PP{pp}") for pp in range(STAGES))
    plain = Server(
        START, 50, 1, "launch_server", "serving", ranks, STAGES, 1, 1, version="0.5.23", device="cuda", port=30000
    )
    return msgspec.structs.replace(plain, **changes)


def resolved(**changes: object) -> Settings:
    values: dict[str, object] = {
        "pp_async_batch_depth": 0,
        "pp_max_micro_batch_size": 256,
        "attention_backend": "torch_native",
        "cuda_graph_config": {"decode": {"backend": "disabled"}, "prefill": {"backend": "disabled"}},
        **changes,
    }
    return Settings(START, "resolved", values)


def story(seconds: int = 12, slots: int = 1) -> list[AnyRecord]:
    """Eight requests in `slots` slots of four: windows of stacks, dumps, log lines, all as a collector tells them."""
    records: list[AnyRecord] = [Hello(1, "0", "box", START, 0, 7), server(), *FRAMES, resolved()]
    records.append(Settings(START, "requested", {"pp_size": 4}))
    records.append(Rules(START, "0.5.23", "/x", msgspec.msgpack.encode(BOOK)))
    for second in range(1, seconds + 1):
        at = START + second * SECOND
        for pp in range(STAGES):
            key, tid = RankKey(0, pp, 0), 100 + pp
            starts, ends = [at - SECOND, at - SECOND // 5], [at - SECOND // 5, at]
            records.append(StackSpans(key, tid, "MainThread", at - SECOND, at, SECOND // 50, starts, ends, [1, 2]))
            slot = second % slots
            records.append(LoopSample(key, at - SECOND // 2, 1000, 1, "event_loop_pp", (slot - 1) % STAGES, slot))
            records.append(BatchLog(at, None, "decode", None, pp, None, running=8 // slots, queued=0, graph=False))
        records.append(LoadSample(at, "log", queued=0, tokens_per_s=100.0))
        records.append(Clock(at, at))
    return records


class Stream:
    """Hands over records in the pieces it is given, and keeps what is asked of it."""

    def __init__(self, live: bool = True) -> None:
        self.live = live
        self.waiting: list[AnyRecord] = []
        self.sent: list[AnyCommand] = []

    def drain(self) -> list[AnyRecord]:
        records, self.waiting = self.waiting, []
        return records

    def wait(self, timeout_s: float) -> bool:
        return bool(self.waiting)

    def send(self, command: AnyCommand) -> None:
        self.sent.append(command)

    def close(self) -> None:
        pass


def play(records: list[AnyRecord], cuts: list[int] | None = None, live: bool = True) -> tuple[Session, Stream]:
    stream = Stream(live)
    session = Session(stream, clock=lambda: START)
    edges = [0, *sorted(cuts or []), len(records)]
    for begin, end in pairwise(edges):
        stream.waiting = records[begin:end]
        session.poll()
    return session, stream


def shown(session: Session) -> list[str]:
    return [finding.id for finding in session.screen().findings]


def test_a_story_of_one_slot() -> None:
    session, _ = play(story())
    assert shown(session) == ["pipeline.serial", "graphs.disabled_by_rule"]
    rule = session.screen().findings[1]
    assert rule.source == (("srt/server_args.py", 2553),)
    assert "samples by slot: 0: 44" in session.screen().findings[0].evidence
    assert session.screen().header.load.running == 8


def test_full_slots_leave_only_the_graphs() -> None:
    session, _ = play(story(slots=4))
    assert shown(session) == ["graphs.disabled_by_rule"]


def test_twenty_samples_come_before_any_claim_about_slots() -> None:
    session, _ = play(story(seconds=4))
    assert "pipeline.serial" not in shown(session)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 150), max_size=12), st.booleans())
def test_a_recording_replays_alike(cuts: list[int], live: bool) -> None:
    records = story(seconds=9)
    assert (
        play(records, [cut for cut in cuts if cut <= len(records)], live)[0].screen().findings
        == play(records)[0].screen().findings
    )


def test_findings_clear_when_the_load_ends() -> None:
    records = story()
    session, stream = play(records)
    assert shown(session)
    end = START + 12 * SECOND
    idle: list[AnyRecord] = [FrameDef(9, "on_idle", "sglang/srt/managers/scheduler.py", 1), StackDef(9, (1, 2, 9))]
    stream.waiting = [*idle]
    for second in range(1, 14):
        at = end + second * SECOND
        for pp in range(STAGES):
            stream.waiting.append(
                StackSpans(
                    RankKey(0, pp, 0), 100 + pp, "MainThread", at - SECOND, at, SECOND // 50, [at - SECOND], [at], [9]
                )
            )
        stream.waiting.append(Clock(at, at))
    session.poll()
    assert shown(session) == []
    assert session.screen().header.state == "idle"


def test_log_lines_from_before_the_attach_count_only_alone() -> None:
    """The log tells of a load that has ended: eight requests a slot, and now one."""
    old = [BatchLog(START - second * SECOND, None, "decode", None, 0, None, running=8) for second in (5, 4, 3)]
    records = story(seconds=2)
    before, _ = play([*records[:2], *old])
    assert before.load.micro_batch(START) == 8
    now = [BatchLog(START + SECOND, None, "decode", None, 0, None, running=1)]
    after, _ = play([*records[:2], *old, *now])
    assert after.load.micro_batch(START + SECOND) == 1


def test_another_server_starts_with_a_clean_sheet() -> None:
    session, stream = play(story())
    assert shown(session)
    stream.waiting = [server(launcher_pid=51)]
    session.poll()
    assert shown(session) == []
    assert session.rules.book is None


@pytest.mark.parametrize("book", [b"", b"\x93nonsense", msgspec.msgpack.encode({"version": 1})])
def test_rules_that_cannot_be_read_are_no_rules(book: bytes) -> None:
    records = [record for record in story() if not isinstance(record, Rules)]
    session, _ = play([*records[:8], Rules(START, None, "", book, "no permission"), *records[8:]])
    (graphs,) = [finding for finding in session.screen().findings if finding.id.startswith("graphs")]
    assert (graphs.provenance, graphs.source) == ("inferred", ())


@pytest.mark.parametrize(("device", "share"), [("cpu", 0.2), ("cuda", None)])
def test_loops_over_requests_are_told_on_a_cpu_server_alone(device: str, share: float | None) -> None:
    file = "sglang/srt/layers/attention/torch_native_backend.py"
    loop = FrameDef(6, "TorchNativeAttnBackend._run_sdpa_forward_decode", file, 216)
    records = story()
    records[1] = server(device=device)
    records[2 + len(FRAMES) : 2 + len(FRAMES)] = [loop, StackDef(2, (1, 2, 4, 5, 6))]
    session, _ = play(records)
    found = gather(session, START + 12 * SECOND)
    assert found is not None
    assert [stage.by_request for stage in found.stages] == pytest.approx([share] * STAGES)
    assert found.stages[0].phases == pytest.approx({"wait_gpu": 0.8, "eager": 0.2}, abs=0.01)


def test_window_and_figures_of_the_evidence() -> None:
    records = story(seconds=12)
    at = START + 12 * SECOND
    key = RankKey(0, 0, 0)
    records += [
        HostSamples(key, 100, [at - 2 * SECOND, at - SECOND], [0, SECOND // 2], [0, 0], "RR", process_cpu_ns=SECOND),
        HostSamples(key, 100, [at], [SECOND], [SECOND // 4], "R", process_cpu_ns=SECOND * 7 // 4, processors=[3]),
        GpuSample(0, at, power_w=100.0),
    ]
    session, _ = play(records)
    found = gather(session, at)
    assert found is not None
    first = found.stages[0]
    assert first.phases == pytest.approx({"wait_gpu": 0.8, "eager": 0.2}, abs=0.01)
    assert first.ranks[0].host_cpu == pytest.approx(0.5)
    assert first.ranks[0].wait_share == pytest.approx(0.25)
    assert first.ranks[0].cores == (3,)
    assert first.ranks[0].process_cpu == pytest.approx(0.75)
    assert (first.busy, first.ranks[0].gpu) == (None, None)
    assert found.active is True
    assert found.replay_share == 0.0
    assert (found.seconds, found.micro_batch) == (12.0, 8.0)


@pytest.mark.parametrize(
    ("percents", "busy"),
    [([0.8], 0.008), ([90.0, 100.0], 0.95), ([float("nan")], None), ([], None), ([0.0, 0.0], None), ([0.0, 90.0], 0.9)],
)  # fmt: skip
def test_forward_occupancy_is_in_percent_and_its_last_readings_count(percents: list[float], busy: float | None) -> None:
    at = START + 12 * SECOND
    told = [Metric(at, "sglang:fwd_occupancy", (("pp_rank", "2"),), percent) for percent in percents]
    session, _ = play([*story(), *told])
    found = gather(session, at)
    assert found is not None
    assert found.stages[2].busy == pytest.approx(busy)
    assert found.stages[1].busy is None


class TestDumps:
    """When bursts are asked for."""

    def test_a_burst_of_every_stage_at_once_and_no_second_one_soon(self) -> None:
        _, stream = play(story(seconds=3))
        asked = [command for command in stream.sent if isinstance(command, DumpNow)]
        assert len(asked) == FIRST_BURST
        assert {command.rank for command in asked} == {RankKey(0, pp, 0) for pp in range(STAGES)}

    def test_a_recording_is_not_asked(self) -> None:
        assert play(story(), live=False)[1].sent == []

    @pytest.mark.parametrize(
        ("state", "pp", "samples", "active"),
        [("loading", 4, 0, None), ("serving", 1, 0, True), ("serving", 4, 0, False), ("serving", 4, 40, True)],
    )
    def test_nothing_to_learn(self, state: str, pp: int, samples: int, active: bool | None) -> None:
        assert Dumping().wanted(server(state=state, pp_size=pp), samples, active, START) == []

    def test_thin_evidence_is_asked_for_again(self) -> None:
        dumping = Dumping()
        assert dumping.wanted(server(), 0, True, START)
        assert not dumping.wanted(server(), 5, True, START + 5 * SECOND)
        assert dumping.wanted(server(), 5, True, START + 25 * SECOND)
        assert not dumping.wanted(server(), 25, True, START + 60 * SECOND)
        assert dumping.wanted(server(launcher_pid=51), 0, True, START + 61 * SECOND)

    def test_one_rank_of_each_stage(self) -> None:
        ranks = tuple(Rank(RankKey(0, pp, tp), 1, 1, "") for pp in range(2) for tp in range(4))
        assert {command.rank for command in burst(server(ranks=ranks), 4)} == {RankKey(0, 0, 0), RankKey(0, 1, 0)}
