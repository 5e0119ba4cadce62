"""From a burst's records to what the screen shows: pieces, cells, rows, busy shares, findings, and a session that holds them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppscope.collect.client import RecordedStream
from ppscope.diagnose.findings import merge
from ppscope.records import (
    SCHEMA,
    BurstLaunch,
    BurstRank,
    BurstReport,
    BurstStatus,
    BurstStep,
    Hello,
    Rank,
    RankExit,
    RankKey,
    Server,
    Settings,
)
from ppscope.session import Session
from ppscope.session.burst import FRESH_NS, BurstState
from ppscope.session.burst_lane import BurstLane
from ppscope.session.burst_pieces import gpu_pieces, host_pieces
from ppscope.target.phases import PhaseTable
from ppscope.views import Cell, Finding, Lane, LaunchRow
from ppscope.widgets.panel_launches import NONE_READ, launch_listing, launches_listing
from ppscope.widgets.text import width_of

STYLES = PhaseTable.load().styles
PHASES = {style.name: index for index, style in enumerate(STYLES)}
MS = 1_000_000
KEY = RankKey(0, 0, 0)
START = 1_000_000_000_000


def rank(
    host: Sequence[tuple[str, int, int]] = (),
    gpu: Sequence[tuple[int, int, int, int]] = (),
    steps: Sequence[tuple[str, int, int, int]] = (),
    **changes: Any,
) -> BurstRank:
    """`host` are (name, start, end), `gpu` (class, start, end, unexpected), `steps` (name, start, end, graph launches); times in ms."""
    names = tuple(dict.fromkeys(name for name, _, _ in host))
    made = BurstRank(
        burst=7,
        rank=KEY,
        start_ns=START,
        end_ns=START + 100 * MS,
        names=names,
        host_names=[names.index(name) for name, _, _ in host],
        host_starts_ns=[start * MS for _, start, _ in host],
        host_lengths_ns=[(end - start) * MS for _, start, end in host],
        gpu_classes=[row[0] for row in gpu],
        gpu_starts_ns=[row[1] * MS for row in gpu],
        gpu_lengths_ns=[(row[2] - row[1]) * MS for row in gpu],
        gpu_steps=[-1 for _ in gpu],
        gpu_unexpected=[row[3] for row in gpu],
        steps=tuple(
            BurstStep(name, "DECODE", 1, START + start * MS, START + end * MS, graphs, 0, 0, 0, "replayed", "")
            for name, start, end, graphs in steps
        ),
        launches=(),
        kernels=(0, 0, 0, 0, 0),
    )
    return msgspec.structs.replace(made, **changes)


def named(pieces: Sequence[tuple[int, int, int, bool]]) -> list[tuple[str, int, int]]:
    return [(STYLES[phase].name, (start - START) // MS, (end - START) // MS) for start, end, phase, _ in pieces]


def test_a_host_thread_is_in_the_span_that_began_last() -> None:
    record = rank(
        host=[
            ("run_batch", 10, 40),
            ("scheduler.run_batch", 10, 40),
            ("step[DECODE bs=4]", 15, 30),
            ("gloo:recv", 0, 20),
            ("gloo:send", 0, 90),
            ("process_batch_result", 50, 60),
            ("my own span", 61, 70),
        ],
        steps=[("step[DECODE bs=4]", 15, 30, 1)],
    )
    assert named(host_pieces(record, PHASES)) == [
        ("recv_activations", 0, 10),
        ("prepare", 10, 15),
        ("replay", 15, 30),
        ("prepare", 30, 40),
        ("postprocess", 50, 60),
    ]


def test_a_step_without_a_graph_launch_is_eager_also_where_run_batch_is_the_step() -> None:
    record = rank(host=[("run_batch", 10, 40)], steps=[("run_batch", 10, 40, 0)])
    assert named(host_pieces(record, PHASES)) == [("eager", 10, 40)]


def test_a_gpu_computes_before_it_communicates_and_is_idle_between() -> None:
    record = rank(gpu=[(4, 0, 50, 0), (0, 20, 30, 0), (1, 60, 61, 1), (3, 61, 62, 0)])
    pieces = gpu_pieces(record, PHASES, mark=True)
    assert named(pieces) == [
        ("wait_peers", 0, 20), ("replay", 20, 30), ("wait_peers", 30, 50), ("idle", 50, 60), ("eager", 60, 61),
        ("graph_input", 61, 62), ("idle", 62, 100),
    ]  # fmt: skip
    assert [piece[3] for piece in pieces].count(True) == 1
    assert not any(piece[3] for piece in gpu_pieces(record, PHASES, mark=False))


spans = st.lists(
    st.tuples(
        st.sampled_from(["run_batch", "recv_requests", "gloo:recv", "odd"]), st.integers(0, 99), st.integers(0, 99)
    )
)
works = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 99), st.integers(0, 99), st.integers(0, 1)))


@settings(deadline=None)
@given(host=spans, gpu=works)
def test_pieces_are_disjoint_in_order_and_cover_what_they_should(
    host: list[tuple[str, int, int]], gpu: list[tuple[int, int, int, int]]
) -> None:
    host = [(name, min(a, b), max(a, b)) for name, a, b in host]
    gpu = [(kind, min(a, b), max(a, b), odd) for kind, a, b, odd in gpu]
    record = rank(host=host, gpu=gpu)
    for pieces in (host_pieces(record, PHASES), gpu_pieces(record, PHASES, mark=True)):
        assert all(start < end for start, end, _, _ in pieces)
        assert all(before[1] <= after[0] for before, after in pairwise(pieces))
    covered = {at for name, start, end in host if name != "odd" for at in range(start, end)}
    assert sum(end - start for start, end, _, _ in host_pieces(record, PHASES)) == len(covered) * MS
    busy = {at for _, start, end, _ in gpu for at in range(start, end)}
    idle = PHASES["idle"]
    shown = sum(end - start for start, end, phase, _ in gpu_pieces(record, PHASES, mark=True) if phase != idle)
    assert shown == len(busy) * MS


@settings(deadline=None)
@given(
    gpu=works,
    columns=st.integers(1, 120),
    zoom=st.sampled_from([MS // 2, MS, 4 * MS, 9 * MS]),
    back=st.integers(-50, 150),
)
def test_cells_agree_with_the_pieces(gpu: list[tuple[int, int, int, int]], columns: int, zoom: int, back: int) -> None:
    pieces = gpu_pieces(rank(gpu=[(k, min(a, b), max(a, b), o) for k, a, b, o in gpu]), PHASES, mark=True)
    lane = BurstLane(STYLES, pieces)
    start = START + back * MS
    cells = lane.cells(start, start + columns * zoom, columns)
    assert len(cells) == columns
    for column, cell in enumerate(cells):
        if cell is None or zoom > MS:
            continue
        middle = start + column * zoom + zoom // 2
        assert lane.covers(middle) or any(piece[0] <= middle for piece in pieces)
        assert cell.work is not None
        assert 0 <= cell.work <= 1


def test_exact_cells_lie_over_sampled_ones_and_say_so() -> None:
    state = BurstState(STYLES)
    state.add_rank(rank(host=[("run_batch", 0, 50)], gpu=[(0, 0, 10, 0)]))
    sampled = Cell(phase=PHASES["idle"], work=0.0, micro_batch=3)
    blank = Cell(phase=None, work=None)
    lane = Lane(KEY, "host", "sampled", (sampled,) * 10)
    (host, gpu) = state.overlay([lane], START, START + 100 * MS, 10)
    assert [cell.phase for cell in host.cells] == [PHASES["prepare"]] * 5 + [PHASES["idle"]] * 5
    assert host.cells[0].micro_batch == 3
    assert host.provenance == "sampled", "half of it is"
    assert (gpu.lane, gpu.provenance) == ("gpu", "exact")
    assert gpu.cells[0].work == 1.0
    (host, _) = state.overlay(
        [Lane(KEY, "host", "sampled", (sampled,) * 5 + (blank,) * 5)], START, START + 100 * MS, 10
    )
    assert host.provenance == "exact"
    other = Lane(RankKey(0, 1, 0), "host", "sampled", (sampled,))
    assert state.overlay([other], START, START + MS, 1) == [other]


LAUNCH = BurstLaunch(
    "late_kernel", "eager", False, 3, 9000, 4000, 2000, 2, 1, 2, "7", "cudaLaunchKernel", "aten::add", "forward",
    "a/model.py", 12, ("outer", "a/model.py(12): forward"),
)  # fmt: skip


@pytest.mark.parametrize(("off", "marked"), [(False, True), (True, False)])
def test_eager_launches_are_out_of_place_only_where_graphs_are_on(off: bool, marked: bool) -> None:
    state = BurstState(STYLES)
    state.add_rank(rank(gpu=[(1, 0, 10, 1)], launches=(LAUNCH,)), graphs_off=off)
    lanes = state.overlay([Lane(KEY, "host", "sampled", (Cell(None, None),))], START, START + 10 * MS, 1)
    assert (lanes[1].cells[0].mark == "eager") is marked
    (row,) = state.launches
    assert row.reason is not None
    assert ("switched off" in row.reason) is off


@pytest.mark.parametrize("width", [80, 160])
def test_without_a_launch_the_panel_says_why(width: int) -> None:
    unread = launches_listing([], True, width).items[0].lines
    assert "No launches have been seen" in unread[0][0][0]
    read = launches_listing([], True, width, read=True).items[0].lines
    said = " ".join("".join(text for text, _ in line).strip() for line in read)
    assert said == " ".join(NONE_READ)
    assert all(width_of(line) <= width for line in read)


def test_the_launches_panel_lists_and_opens_a_row() -> None:
    state = BurstState(STYLES)
    replay = BurstLaunch("gemm", "replayed", True, 100, 900_000, 9000, None, 10, 10, 10, "7")
    state.add_rank(rank(launches=(replay, LAUNCH)))
    for width in (80, 120, 160):
        listing = launches_listing(state.launches, can_burst=True, width=width)
        assert ["late_kernel" in item.copy for item in listing.items] == [True, False], "out of place first"
        assert all(width_of(line) <= width for item in listing.items for line in item.lines)
    assert len(launches_listing(state.launches, True, 120, "gemm").items) == 1
    row = listing.items[0].key
    assert isinstance(row, LaunchRow)
    text = launch_listing(row, 120).text
    for part in ("3 in 2 steps", "1–2 a step", "0.009 ms", "aten::add", "model.py:12", "2.0 µs", "cudaLaunchKernel"):
        assert part in text


FINDING = Finding("graphs.eager_decode", "high", None, "eager", ("e",), "r", "exact")
BUBBLES = Finding("pipeline.bubbles", "medium", None, "bubbles", ("e",), "r", "exact")


def report(*findings: Finding, at_ns: int = START) -> BurstReport:
    return BurstReport(7, at_ns, START, START + 100 * MS, 0.5, (), msgspec.msgpack.encode(list(findings)))


def test_findings_are_claimed_while_fresh_and_not_twice() -> None:
    state = BurstState(STYLES)
    state.add_report(report(FINDING, BUBBLES))
    assert [finding.id for finding in state.findings(START + MS)] == ["graphs.eager_decode", "pipeline.bubbles"]
    assert [finding.id for finding in state.findings(START + MS, graphs_off=True)] == ["pipeline.bubbles"]
    assert state.findings(START + FRESH_NS + 1) == ()
    state.add_report(BurstReport(8, START, findings=b"\xc1damaged"))
    assert state.findings(START) == ()


def test_what_a_live_finding_explains_is_not_found_a_second_time() -> None:
    flag = msgspec.structs.replace(FINDING, id="graphs.disabled_by_flag")
    guess = msgspec.structs.replace(BUBBLES, provenance="sampled")
    merged = merge([guess, flag], [FINDING, BUBBLES])
    assert [(finding.id, finding.provenance) for finding in merged] == [
        ("graphs.disabled_by_flag", "exact"),
        ("pipeline.bubbles", "exact"),
    ]


@pytest.mark.parametrize(
    ("live", "found"),
    [
        (
            [msgspec.structs.replace(BUBBLES, remedy="by slots", provenance="sampled")],
            [("pipeline.bubbles", "by slots")],
        ),
        ([msgspec.structs.replace(BUBBLES, id="pipeline.serial")], [("pipeline.serial", "r")]),
        ([msgspec.structs.replace(BUBBLES, id="load.too_few_requests")], [("load.too_few_requests", "r")]),
        ([msgspec.structs.replace(BUBBLES, id="host.cpu_bound")], [("host.cpu_bound", "r"), ("pipeline.bubbles", "r")]),
        ([], [("pipeline.bubbles", "r")]),
    ],
)
def test_what_to_change_in_a_pipeline_is_told_by_who_knows_its_slots(
    live: list[Finding], found: list[tuple[str, str]]
) -> None:
    assert [(finding.id, finding.remedy) for finding in merge(live, [BUBBLES])] == found


def test_busy_is_the_mean_of_the_ranks_of_a_stage_for_a_while() -> None:
    state = BurstState(STYLES)
    state.add_rank(rank(busy_fraction=0.2))
    state.add_rank(rank(busy_fraction=0.4, rank=RankKey(0, 0, 1)))
    state.add_rank(rank(rank=RankKey(0, 1, 0)))
    assert state.busy(0, START + MS) == pytest.approx(0.3)
    assert state.busy(1, START + MS) is None, "no GPU work in its file"
    assert state.busy(0, START + FRESH_NS + 200 * MS) is None


def session(*records: Any) -> Session:
    server = Server(START, 1, 1, "launch_server", "serving", (Rank(KEY, 10, 1, "PP0"),), 1, 1, 1)
    made = Session(RecordedStream([Hello(SCHEMA, "0", "here", START, START, 1), server, *records]))
    made.poll()
    return made


def test_a_session_shows_a_burst_everywhere() -> None:
    made = session(
        Settings(START, "resolved", {"disable_cuda_graph": True, "version": "0.5.11"}),
        BurstStatus(7, START, "running", "profiling"),
        rank(host=[("run_batch", 0, 50)], gpu=[(1, 0, 10, 1)], launches=(LAUNCH,), busy_fraction=0.25),
        report(BUBBLES, FINDING, at_ns=START + 5_000 * MS),
        BurstStatus(7, START + 5_000 * MS, "done", "1 of 1 ranks read"),
    )
    screen = made.screen()
    assert screen.burst is not None
    assert (screen.burst.state, screen.burst.active, screen.burst.end_ns) == ("done", False, START + 100 * MS)
    assert [row.name for row in screen.launches] == ["late_kernel"]
    assert (screen.stages[0].busy, screen.stages[0].busy_source) == (0.25, "trace")
    assert [finding.id for finding in made.burst_findings(START + 5_000 * MS)] == ["pipeline.bubbles"]
    assert {lane.lane for lane in made.lanes(START, START + 100 * MS, 10)} == {"host", "gpu"}
    assert [span.provenance for span in made.spans(KEY, START, START + 100 * MS)] == ["exact"]
    assert made.burst() is None, "a recording cannot be asked"


def test_a_scheduler_that_ends_soon_after_its_profile_is_said_to() -> None:
    made = session(
        BurstStatus(7, START, "done", "2 of 2 ranks read"),
        RankExit(KEY, 10, START + 3_000 * MS, "gone"),
    )
    progress = made.screen().burst
    assert progress is not None
    assert progress.state == "failed"
    assert "stage 0 (pid 10) ended after the profile" in progress.message
