"""What one server said is not told of the next one that the same session attaches to."""

from __future__ import annotations

import msgspec
import pytest

from ppscope.records import BatchLog, FrameDef, LoadSample, LogNote, Metric, ServerGone, Settings, StackDef
from ppscope.sources.stacks_intern import StackTable
from tests.unit.test_session_troubles import SECOND, START, Live, server

AT = START + SECOND
SAID = (
    Settings(AT, "requested", {"disable_cuda_graph": True, "cuda_graph_max_bs": 7}),
    Settings(AT, "resolved", {"disable_cuda_graph": True, "cuda_graph_max_bs": 7}),
    LoadSample(AT, "metrics", running=3, queued=4, tokens_per_s=5.0, in_flight=7),
    LoadSample(AT, "log", running=3, queued=4, tokens_per_s=5.0),
    BatchLog(AT, AT, "decode", None, 0, None, running=3, queued=4, tokens_per_s=5.0, graph=False),
    Metric(AT, "sglang:cuda_graph_passes_total", (("mode", "decode_none"), ("pp_rank", "0")), 1.0),
    Metric(AT + SECOND, "sglang:cuda_graph_passes_total", (("mode", "decode_none"), ("pp_rank", "0")), 9.0),
    LogNote(AT, "graph_disabled", "Disable cuda graph because of a test"),
)


@pytest.fixture
def live() -> Live:
    live = Live(*SAID)
    live.now_ns = AT + SECOND
    return live


def test_settings_and_load_of_a_server_are_not_those_of_the_next(live: Live) -> None:
    live.say(server(90))
    fresh = Live(pid=90)
    fresh.now_ns = live.now_ns
    fresh.say(server(90))
    seen, wanted = live.session.screen(), fresh.session.screen()
    assert seen.settings == wanted.settings
    assert seen.header.load == wanted.header.load
    assert seen.header.load.tokens_per_s is None
    assert live.session.settings.notes == fresh.session.settings.notes
    assert live.session.load.passes_since(START) == {}
    assert live.session.load.recent_batches(live.now_ns) == []


def test_numbers_of_stacks_that_come_again_mean_what_is_said_last(live: Live) -> None:
    """In recordings of an older ppscope every server's stacks were counted from 0."""
    phases = []
    for function in ("_pp_launch_batch", "recv_requests"):
        loop = FrameDef(0, "event_loop_pp", "sglang/srt/managers/scheduler_pp_mixin.py", 1)
        said = (loop, FrameDef(1, function, "sglang/srt/managers/scheduler.py", 2), StackDef(0, (0, 1)))
        live.say(*said)
        phases.append(live.session.interned.phase(0))
        fresh = Live(*said).session.interned
        assert live.session.interned.frames(0)[-1][0] == function
        assert phases[-1] == fresh.phase(0)
        assert live.session.interned.by_request(0) == fresh.by_request(0)
    assert phases[0] != phases[1]


def test_no_number_of_a_stack_is_used_by_two_tables() -> None:
    tables = [StackTable(lambda record: None) for _ in range(3)]
    numbers = [table.stack([("f", "g.py", line)]) for line in range(5) for table in tables]
    assert len(set(numbers)) == len(numbers)


def test_a_server_that_was_thought_to_be_gone_and_is_not(live: Live) -> None:
    live.say(msgspec.structs.replace(server(50), state="gone"), ServerGone(live.now_ns, 50))
    assert live.session.screen().header.state == "gone"
    live.say(server(50))
    assert live.session.screen().header.state != "gone"


def test_the_same_server_told_anew_keeps_them(live: Live) -> None:
    before = live.session.screen()
    live.say(server(50, stages=4))
    after = live.session.screen()
    assert after.settings == before.settings
    assert after.header.load == before.header.load
    assert after.header.load.tokens_per_s == 5.0
