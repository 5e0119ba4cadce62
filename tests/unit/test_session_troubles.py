"""What the strip says when something is wrong beside the findings."""

from __future__ import annotations

from ppscope.collect.client import RecordedStream
from ppscope.records import (
    AnyCommand,
    AnyRecord,
    BurstRank,
    Clock,
    Cost,
    Dropped,
    Hello,
    LoopSample,
    Note,
    Rank,
    RankExit,
    RankKey,
    Server,
    SourceStatus,
    StackDef,
)
from ppscope.session import Session
from ppscope.session.troubles import blind
from ppscope.views import SourceNote

SECOND = 1_000_000_000
START = 1_000 * SECOND
HELLO = Hello(1, "0.1.0", "box", START, 5_000 * SECOND, 7)

BURST_OF_UNEQUAL_COLUMNS = BurstRank(
    1,
    RankKey(0, 0, 0),
    START,
    START + SECOND,
    ("forward",),
    [0, 7],
    [1],
    [],
    [],
    [],
    [],
    [],
    [],
    (),
    (),
    (0, 0, 0, 0, 0),
)


class FakeStream:
    """A live stream whose records the test hands over."""

    live = True

    def __init__(self) -> None:
        self.records: list[AnyRecord] = []

    def drain(self) -> list[AnyRecord]:
        records, self.records = self.records, []
        return records

    def wait(self, timeout_s: float) -> bool:
        return bool(self.records)

    def send(self, command: AnyCommand) -> None:
        pass

    def close(self) -> None:
        pass


class Live:
    """A session whose clock the test moves."""

    def __init__(self, *records: AnyRecord, pid: int = 50) -> None:
        self.now_ns = START
        self.stream = FakeStream()
        self.session = Session(self.stream, clock=lambda: self.now_ns)
        self.say(HELLO, server(pid), *records)

    def say(self, *records: AnyRecord) -> None:
        self.stream.records += records
        self.session.poll()

    def notes(self) -> dict[str, SourceNote]:
        return {note.name: note for note in self.session.screen().header.notes}


def server(pid: int = 50, stages: int = 4) -> Server:
    ranks = tuple(Rank(RankKey(0, pp, 0), pid + 1 + pp, 1, f"sglang::scheduler_PP{pp}") for pp in range(stages))
    return Server(START, pid, 1, "launch_server", "serving", ranks, stages, 1, 1)


def test_a_stage_that_somebody_stopped_is_named_until_it_goes_on() -> None:
    live = Live(RankExit(RankKey(0, 2, 0), 53, START, "stopped"))
    note = live.notes()["PP2"]
    assert (note.state, note.remedy) == ("stopped", "kill -CONT 53")
    assert "ppscope sends its target no signals" in note.message
    assert live.session.screen().stages[2].ranks[0].exit_reason == "stopped"
    live.say(RankExit(RankKey(0, 1, 0), 52, START, "stopped"))
    assert live.notes()["2 stages"].remedy == "kill -CONT 52 53"
    live.say(RankExit(RankKey(0, 1, 0), 52, START, "resumed"), RankExit(RankKey(0, 2, 0), 53, START, "resumed"))
    assert live.notes() == {}


def test_a_collector_that_falls_silent_is_said_and_forgotten_when_it_speaks() -> None:
    live = Live()
    live.now_ns += 4 * SECOND
    assert live.notes() == {}
    live.now_ns += 8 * SECOND
    note = live.notes()["collector"]
    assert (note.state, note.since_ns) == ("stalled", START)
    live.say(Cost(live.now_ns, 0.1, 0.2))
    assert live.notes() == {}


def test_dropped_records_are_told_for_a_minute() -> None:
    live = Live(Dropped(START, 120, 9999))
    assert live.notes()["view"].message.startswith("120 records were dropped")
    live.now_ns += 61 * SECOND
    live.say(Cost(live.now_ns, 0.1, 0.2))
    assert live.notes() == {}
    assert live.session.screen().header.dropped == 120


def test_a_step_of_the_wall_clock_is_told_and_moves_nothing() -> None:
    live = Live(Clock(START + 30 * SECOND, 5_030 * SECOND + 10_000_000))
    assert live.notes() == {}
    before = live.session.now_ns()
    live.say(Clock(START + 60 * SECOND, 5_060 * SECOND - 3_600 * SECOND))
    assert "-3600.0 s" in live.notes()["clock"].message
    assert live.session.now_ns() == before
    live.now_ns = START + 90 * SECOND
    live.say(Clock(START + 90 * SECOND, 5_090 * SECOND - 3_600 * SECOND))
    assert live.session.clock_step_ns == -3_600 * SECOND


def test_what_ails_several_ranks_alike_is_one_note() -> None:
    remedy = "run the container with --cap-add SYS_PTRACE"
    live = Live(*[
        SourceStatus(name, START, "dead", f"root may not read {51 + pp}", remedy, RankKey(0, pp, 0))
        for pp in range(4) for name in ("stacks", "dumps")
    ], SourceStatus("log", START, "degraded", "no permission"))  # fmt: skip
    notes = live.notes()
    assert set(notes) == {"stacks, dumps", "log"}
    assert notes["stacks, dumps"].message == "root may not read 51 (all 4 ranks: no stacks are seen)"


def test_ranks_of_which_none_can_be_read_are_told_as_blindness() -> None:
    remedy = "run the container with --cap-add SYS_PTRACE"
    denied = [SourceStatus("stacks", START, "dead", "root may not read 51", remedy, RankKey(0, p, 0)) for p in range(4)]
    live = Live(*denied[:3])
    assert blind(live.session) is None, "the fourth may still be read"
    assert live.notes()["stacks"].message == "root may not read 51 (and 2 more ranks)"
    live.say(denied[3])
    reason = blind(live.session)
    assert reason is not None
    assert reason.remedy == remedy
    assert live.notes()["stacks"].message == "root may not read 51 (all 4 ranks: no stacks are seen)"
    live.say(SourceStatus("probe", START, "ok"))
    assert blind(live.session) is None, "the probe tells more than stacks do"


def test_a_failed_re_attach_is_said() -> None:
    live = Live(Note(START, "error", "no process 9\nppscope attach"), Note(START, "info", "nothing to see"))
    assert (live.notes()["collector"].message, live.notes()["collector"].remedy) == ("no process 9", "ppscope attach")


def test_a_new_server_begins_without_the_troubles_of_the_old() -> None:
    live = Live(SourceStatus("stacks", START, "dead", "process 51 is gone", "", RankKey(0, 0, 0)))
    assert live.notes()
    live.say(server(80))
    assert live.notes() == {}


def test_a_recording_is_never_silent() -> None:
    session = Session(RecordedStream([HELLO, server()]), clock=lambda: START + 3_600 * SECOND)
    session.poll()
    assert session.screen().header.notes == ()


def test_a_record_that_makes_no_sense_is_counted_and_the_rest_goes_on() -> None:
    live = Live()
    live.say(
        StackDef(2**40, (1, 2)),
        LoopSample(RankKey(0, 0, 0), START, 1, 1),
        BURST_OF_UNEQUAL_COLUMNS,
        Dropped(START, 3, 9),
    )
    assert "1 records make no sense" in live.notes()["stream"].message
    assert "BurstRank" in live.notes()["stream"].message
    assert "3 records were dropped" in live.notes()["view"].message
