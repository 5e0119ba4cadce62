"""From the probe's spans to what the screen draws: own time of nested calls, exact before sampled, slots, busy."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppscope.probe import layout as code
from ppscope.records import AnyRecord, FrameDef, Hello, ProbeSpans, Rank, RankKey, Server, StackDef, StackSpans
from ppscope.session import Session
from ppscope.session.exact_timeline import ExactTimeline
from ppscope.session.flatten import EVENT_WAIT_NS, PHASES, Flattener, Piece, phase_of_kind
from ppscope.target.phases import PhaseTable
from ppscope.views import Cell

TABLE = PhaseTable.load()
PHASE = TABLE.by_name
NAMES = [style.name for style in TABLE.styles]
S, MS = 1_000_000_000, 1_000_000
T0 = 1000 * S
Call = tuple[int, int, int, int]
"""(kind, start, end, depth)"""


def spans(calls: list[Call], *, key: RankKey = RankKey(0, 0, 0), lost: int = 0, **columns: Any) -> ProbeSpans:
    count = len(calls)
    defaults: dict[str, Any] = {
        "micro_batches": [0] * count, "modes": bytes(count), "batch_sizes": [0] * count, "tokens": [0] * count,
        "graphs": bytes(count), "turns": [0] * count, "slots": 2,
    }  # fmt: skip
    return ProbeSpans(
        rank=key, tid=1, sequence=1, lost=lost, kinds=bytes(call[0] for call in calls), starts_ns=[call[1] for call in calls],
        ends_ns=[call[2] for call in calls], depths=bytes(call[3] for call in calls), **(defaults | columns),
    )  # fmt: skip


# -- nested calls to pieces

tree: st.SearchStrategy[Any] = st.recursive(
    st.builds(lambda before, own: (before, own, []), st.integers(0, 50), st.integers(1, 100)),
    lambda inner: st.builds(
        lambda before, own, kids: (before, own, kids),
        st.integers(0, 50), st.integers(1, 100), st.lists(inner, max_size=3),
    ),
    max_leaves=12,
)  # fmt: skip


def unfold(node: Any, at: int, depth: int, out: list[Call], own: dict[int, int]) -> int:
    before, took, children = node
    start = at + before
    kind = code.INTAKE + (depth * 3 + len(out)) % 18
    end: int = start + took
    for child in children:
        end = unfold(child, end, depth + 1, out, own)
    inside = sum(call[2] - call[1] for call in out if call[3] == depth + 1 and call[1] >= start)
    out.append((kind, start, end, depth))
    phase = PHASE[PHASES[kind]]
    own[phase] = own.get(phase, 0) + end - start - inside
    return end


@settings(deadline=None)
@given(st.lists(tree, min_size=1, max_size=4), st.integers(1, 7))
def test_pieces_are_disjoint_and_every_call_keeps_its_own_time(forest: list[Any], chunk: int) -> None:
    calls: list[Call] = []
    own: dict[int, int] = {}
    at = T0
    for node in forest:
        at = unfold(node, at, 0, calls, own)
    flattener = Flattener(phase_of_kind(PHASE, TABLE.other), PHASE["wait_gpu"])
    pieces: list[Piece] = []
    for first in range(0, len(calls), chunk):  # however the stream cuts it
        for part in flattener.add(spans(calls[first : first + chunk])):
            pieces += part
    assert all(a[1] <= b[0] for a, b in pairwise(pieces))
    assert all(piece[0] < piece[1] for piece in pieces)
    told: dict[int, int] = {}
    for start, end, phase, *_ in pieces:
        told[phase] = told.get(phase, 0) + end - start
    assert told == {phase: took for phase, took in own.items() if took}


def test_every_kind_has_a_phase_of_the_table() -> None:
    kinds = set(range(code.INTAKE, code.GPU_FORWARD))
    assert set(PHASES) == kinds
    assert set(PHASES.values()) <= set(PHASE)


def test_the_wait_for_an_event_that_is_not_wrapped() -> None:
    flattener = Flattener(phase_of_kind(PHASE, TABLE.other), PHASE["wait_gpu"])
    calls = [(code.EXCHANGE, T0, T0 + 10, 0), (code.PROCESS, T0 + 10 + EVENT_WAIT_NS, T0 + 20 + EVENT_WAIT_NS, 0)]
    pieces = [piece for part in flattener.add(spans(calls)) for piece in part]
    assert [(NAMES[p[2]], p[1] - p[0]) for p in pieces] == [
        ("postprocess", 10),
        ("wait_gpu", EVENT_WAIT_NS),
        ("postprocess", 10),
    ]


# -- the timeline


def piece(start: int, end: int, phase: str, slot: int = 0) -> Piece:
    return (start, end, PHASE[phase], slot, 2, 4, 4, 0)


steps_of = st.tuples(st.integers(0, 40 * MS), st.integers(1, 60 * MS), st.sampled_from(["eager", "send", "idle"]))


@settings(deadline=None, max_examples=60)
@given(st.lists(steps_of, min_size=1, max_size=80))
def test_no_time_is_lost_between_the_grains(steps: list[tuple[int, int, str]]) -> None:
    line = ExactTimeline(TABLE.styles, TABLE.other)
    at = T0
    expected: dict[str, int] = {}
    for gap, took, phase in steps:
        if at > T0:
            expected["other"] = expected.get("other", 0) + gap
        line.add([piece(at + gap, at + gap + took, phase)])
        expected[phase] = expected.get(phase, 0) + took
        at += gap + took
    told = {NAMES[phase]: took for phase, took in line.times(T0 - S, at + S).items()}
    assert told == {name: took for name, took in expected.items() if took}
    assert all(cell is not None for cell in line.cells(line.extent[0], line.extent[1], 1))  # type: ignore[index]


def test_old_time_lives_on_in_sums() -> None:
    line = ExactTimeline(TABLE.styles, TABLE.other)
    for turn in range(200_000):
        at = T0 + turn * MS
        line.add([piece(at, at + MS // 2, "eager", turn % 2), piece(at + MS // 2, at + MS, "recv_outputs")])
    assert len(line._starts) <= 60_000 * 2 + 16_384
    old = line.cells(T0 + 10 * S, T0 + 40 * S, 10)
    assert [cell.work if cell else None for cell in old] == pytest.approx([0.5] * 10, abs=0.01)
    assert line.cells(T0 - 30 * S, T0, 10) == [None] * 10


def test_a_hole_stays_empty_and_belongs_to_the_stacks() -> None:
    line = ExactTimeline(TABLE.styles, TABLE.other)
    line.add([piece(T0, T0 + S, "eager")])
    line.break_here()
    line.add([piece(T0 + 3 * S, T0 + 4 * S, "eager")])
    assert [cell is not None for cell in line.cells(T0, T0 + 4 * S, 4)] == [True, False, False, True]
    assert not line.covers(T0 + 2 * S)
    assert line.covers(T0 + 3 * S)


# -- the session


class Stream:
    live = True

    def __init__(self, records: list[AnyRecord]) -> None:
        self.records = records

    def drain(self) -> list[AnyRecord]:
        records, self.records = self.records, []
        # As on the wire.
        coder = msgspec.msgpack.Decoder(AnyRecord)
        return [coder.decode(msgspec.msgpack.encode(record)) for record in records]

    def wait(self, timeout_s: float) -> bool:
        return True

    def send(self, command: object) -> None:
        pass

    def close(self) -> None:
        pass


def server(device: str = "cpu", pp: int = 2) -> Server:
    ranks = tuple(Rank(RankKey(0, stage, 0), 10 + stage, 1, f"sglang::scheduler_PP{stage}") for stage in range(pp))
    return Server(T0, 1, 1, "launch_server", "serving", ranks, pp, 1, 1, version="0.5.23", device=device)


def turns(key: RankKey, seconds: int, occupied: set[int], slots: int = 2) -> ProbeSpans:
    """Turns of 10 ms: half forward and half waiting where the slot holds a batch, all waiting where it does not."""
    calls: list[Call] = []
    slot_of, turn_of, sizes = [], [], []
    for turn in range(seconds * 100):
        at, slot = T0 + turn * 10 * MS, turn % slots
        mine = [(code.RECV_OUTPUTS, at + (5 if slot in occupied else 0) * MS, at + 10 * MS, 0)]
        if slot in occupied:
            mine = [(code.EAGER, at + MS, at + 4 * MS, 1), (code.LAUNCH, at, at + 5 * MS, 0), *mine]
        calls += mine
        slot_of += [slot] * len(mine)
        turn_of += [turn] * len(mine)
        sizes += [3] * len(mine)
    count = len(calls)
    return spans(
        calls, key=key, micro_batches=slot_of, turns=turn_of, modes=bytes([2] * count), batch_sizes=sizes, slots=slots,
        graphs=bytes([code.NO_RUNNER] * count),
    )  # fmt: skip


def session(*records: AnyRecord, now_s: int = 10) -> Session:
    now_ns = T0 + now_s * S
    made = Session(Stream([Hello(1, "0", "host", now_ns, 0, 1), *records]), lambda: now_ns)
    made.poll()
    return made


def stacks(key: RankKey, tid: int, start: int, end: int) -> list[AnyRecord]:
    frames = [("event_loop_pp", "managers/scheduler_pp_mixin.py"), ("on_idle", "managers/scheduler.py")]
    definitions: list[AnyRecord] = [FrameDef(i, *frame, 1) for i, frame in enumerate(frames)]
    return [
        *definitions,
        StackDef(0, (0, 1)),
        StackSpans(key, tid, "MainThread", start, end, 20 * MS, [start], [end], [0]),
    ]


@pytest.mark.parametrize(("occupied", "mean", "busy"), [({0}, 1.0, 0.25), ({0, 1}, 2.0, 0.5)])
def test_slots_and_busy_are_exact_on_a_cpu_server(occupied: set[int], mean: float, busy: float) -> None:
    made = session(server(), *(turns(RankKey(0, stage, 0), 10, occupied) for stage in range(2)))
    screen = made.screen()
    assert (screen.occupancy.mean, screen.occupancy.provenance) == (mean, "exact")
    assert screen.occupancy.samples == 1000 * len(occupied), "of two stages"
    for stage in screen.stages:
        assert stage.busy_source == "probe"
        assert stage.busy == pytest.approx(busy, abs=0.01)
    assert screen.header.provenance == "exact"


def test_a_host_span_is_no_busy_gpu_but_a_timed_forward_is() -> None:
    key = RankKey(0, 0, 0)
    host = turns(key, 10, {0, 1})
    assert session(server("cuda", 1), host).screen().stages[0].busy is None
    forwards: list[Call] = [(code.GPU_FORWARD, T0 + i * 10 * MS, T0 + i * 10 * MS + 7 * MS, 0) for i in range(1000)]
    graphs = bytes([code.REPLAYED] * len(forwards))
    made = session(server("cuda", 1), host, spans(forwards, key=key, graphs=graphs))
    stage = made.screen().stages[0]
    assert stage.busy_source == "probe"
    assert stage.busy == pytest.approx(0.7, abs=0.01)
    lanes = {lane.lane: lane for lane in made.lanes(T0 + 5 * S, T0 + 5 * S + 30 * MS, 30, [key])}
    assert {lane.provenance for lane in lanes.values()} == {"exact"}
    drawn = [NAMES[cell.phase] if cell.phase is not None else None for cell in lanes["gpu"].cells]
    assert drawn == (["replay"] * 7 + [None] * 3) * 3


@pytest.mark.parametrize(("took", "busy"), [(7 * MS, 0.7), (10 * MS, 1.0)])
def test_a_busy_share_is_of_what_was_told_whenever_it_is_asked_for(took: int, busy: float) -> None:
    key = RankKey(0, 0, 0)
    forwards: list[Call] = [(code.GPU_FORWARD, T0 + i * 10 * MS, T0 + i * 10 * MS + took, 0) for i in range(1000)]
    made = session(server("cuda", 1), turns(key, 10, {0, 1}), spans(forwards, key=key))
    exact = made.states[key].exact
    assert exact is not None
    end = T0 + 10 * S
    for late in (0, 7 * MS, S, 3 * S):
        share = exact.gpu_busy(end + late - 5 * S, end + late)
        assert share == pytest.approx(busy, abs=0.01)
        assert share is not None
        assert share <= 1.0
    short = exact.gpu_busy(T0 + 5 * S + MS, T0 + 5 * S + 11 * MS)
    assert short is not None
    assert short <= 1.0
    assert exact.gpu_busy(end + S, end + 6 * S) is None, "nothing was told of it"


def test_exact_stands_before_sampled_and_sampled_fills_the_rest() -> None:
    key = RankKey(0, 0, 0)
    made = session(server(pp=1), *stacks(key, 10, T0 - 5 * S, T0 + 5 * S), turns(key, 10, {0, 1}))

    def drawn(start: int, end: int) -> tuple[str, list[str | None]]:
        [lane] = made.lanes(start, end, 5, [key])
        return lane.provenance, [NAMES[c.phase] if c.phase is not None else None for c in lane.cells]

    assert drawn(T0 - 5 * S, T0) == ("sampled", ["idle"] * 5)
    assert drawn(T0, T0 + 5 * S)[0] == "exact"
    assert "idle" not in drawn(T0, T0 + 5 * S)[1]
    provenance, phases = drawn(T0 - 2 * S, T0 + 3 * S)
    assert (provenance, phases[:2]) == ("sampled", ["idle"] * 2), "no lane claims more than its weakest cell"
    kinds = [span.provenance for span in made.spans(key, T0 - 2 * S, T0 + 50 * MS)]
    assert kinds == ["sampled"] + ["exact"] * (len(kinds) - 1) or "sampled" not in kinds
    exact = [span for span in made.spans(key, T0 + S, T0 + S + 40 * MS) if NAMES[span.phase] == "eager"]
    told = [(s.micro_batch, s.mode, s.batch_size, s.graph) for s in exact]
    assert told == [(0, "DECODE", 3, "no_runner"), (1, "DECODE", 3, "no_runner")] * 2


def test_in_a_hang_the_stacks_speak_again() -> None:
    key = RankKey(0, 0, 0)
    made = session(server(pp=1), turns(key, 10, {0, 1}), *stacks(key, 10, T0 + 10 * S, T0 + 40 * S), now_s=40)
    stage = made.screen().stages[0]
    assert stage.busy_source == "host"
    assert dict(stage.phases)[PHASE["idle"]] == 1.0
    assert made.screen().header.provenance == "sampled"


@pytest.mark.parametrize(
    ("ahead_s", "provenance"), [(0.0, "exact"), (1.2, "exact"), (2.0, "sampled"), (6.0, "sampled")]
)
def test_a_wait_that_has_not_ended_is_forgiven_for_a_second(ahead_s: float, provenance: str) -> None:
    key, end = RankKey(0, 0, 0), T0 + int((10 + ahead_s) * S)
    made = session(server(pp=1), turns(key, 10, {0, 1}), *stacks(key, 10, T0, end), now_s=17)
    assert made.screen().header.provenance == provenance


def test_spans_that_were_lost_leave_a_hole() -> None:
    key = RankKey(0, 0, 0)
    late: list[Call] = [(code.LAUNCH, T0 + 20 * S, T0 + 21 * S, 0)]
    made = session(server(pp=1), turns(key, 10, {0}), spans(late, key=key, lost=500), now_s=21)
    exact = made.states[key].exact
    assert exact is not None
    assert (exact.lost, exact.timeline.covers(T0 + 15 * S), exact.timeline.covers(T0 + 20 * S)) == (500, False, True)
    cells = exact.timeline.cells(T0 + 12 * S, T0 + 18 * S, 3)
    assert cells == [None, None, None]
    assert isinstance(exact.timeline.cells(T0 + 20 * S, T0 + 21 * S, 1)[0], Cell)
