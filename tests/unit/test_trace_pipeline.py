"""Whole pipelines with known truth: bubble, clocks, leaks, findings."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ppscope.collect.client import RecordedStream
from ppscope.records import BurstRank, RankKey
from ppscope.session import Session
from ppscope.sources.burst_columns import rank_record
from ppscope.trace.analyse import analyse_file
from ppscope.trace.intervals import Intervals, concurrency_ns
from ppscope.trace.recording import trace_records
from ppscope.trace.report import TraceReport, make_report, to_json
from ppscope.trace.spans import GPU_CLASSES, export_spans
from ppscope.trace.text import WIDTH, render
from tests.kineto import BASE_NS, QUARTER_NS, Pipeline

MS = 1_000_000
FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def report_of(pipeline: Pipeline, folder: Path) -> TraceReport:
    return make_report([analyse_file(path) for path in pipeline.write(folder)])


def ids(report: TraceReport) -> set[str]:
    return {finding.id for finding in report.findings}


@pytest.mark.parametrize(
    ("compute_ns", "slots"),
    [([2 * MS] * 4, 1), ([2 * MS] * 4, 4), ([2 * MS] * 2, 2), ([MS, 4 * MS, 2 * MS], 3), ([MS] * 8, 2)],
)
def test_bubble_equals_the_truth(compute_ns: list[int], slots: int, tmp_path: Path) -> None:
    pipeline = Pipeline(compute_ns, steps=12, slots=slots).build()
    bubble = report_of(pipeline, tmp_path).bubble
    assert bubble is not None
    truth = pipeline.busy_fractions()
    assert [load.busy_fraction for load in bubble.per_stage] == pytest.approx(truth, abs=1e-6)
    assert bubble.fraction == pytest.approx(1 - sum(truth) / len(truth), abs=1e-6)
    assert bubble.critical_stage == truth.index(max(truth))
    for load in bubble.per_stage:
        assert load.busy_fraction + load.communication_fraction + load.idle_fraction == pytest.approx(1)
    assert bubble.per_stage[-1].communication_fraction > 0.01
    assert sum(bubble.concurrency) == pytest.approx(1)
    assert sum(count * share for count, share in enumerate(bubble.concurrency)) == pytest.approx(sum(truth), abs=1e-6)


def test_serial_pipeline_is_found_and_a_full_one_is_not(tmp_path: Path) -> None:
    serial = report_of(Pipeline([2 * MS] * 4, steps=12, slots=1).build(), tmp_path)
    assert ids(serial) == {"pipeline.bubbles"}
    assert "--pp-max-micro-batch-size 2" in serial.findings[0].remedy
    assert serial.bubble is not None
    assert serial.bubble.concurrency[2] == pytest.approx(0, abs=1e-6)
    full = report_of(Pipeline([4 * MS] * 4, steps=40, slots=6).build(), tmp_path)
    assert ids(full) == set()
    assert not full.alarms


def test_each_run_has_its_own_busy_shares_on_the_screen(tmp_path: Path) -> None:
    """Before and after in one page: runs are told apart as data-parallel replicas are."""
    runs = [Pipeline([2 * MS] * 4, steps=24, slots=slots).build() for slots in (1, 4)]
    paths: list[Path] = []
    for number, run in enumerate(runs):
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        paths += run.write(folder, f"179598{number}460.25")
    records = trace_records(make_report([analyse_file(path) for path in paths]))
    session = Session(RecordedStream(records))
    session.poll()
    told = {record.rank: record.busy_fraction for record in records if isinstance(record, BurstRank)}
    rows = session.screen().stages
    assert len(rows) == len(told) == 8
    for row in rows:
        assert row.busy_source == "trace"
        assert row.busy == told[RankKey(row.dp, row.pp, 0)]
        assert session.stage_busy(row.dp, row.pp, None, None, session.now_ns(), None) == (row.busy, "trace")
    first, second = ([row.busy or 0.0 for row in rows if row.dp == run] for run in (0, 1))
    assert max(first) < 0.4 < min(second)


def test_a_single_request_is_no_alarm(tmp_path: Path) -> None:
    report = report_of(Pipeline([2 * MS] * 4, steps=12, batch_size=1).build(), tmp_path)
    assert [finding.severity for finding in report.findings] == ["info"]
    assert not report.alarms


@pytest.mark.parametrize("lossy", [0, 1])
def test_lost_kernels_leave_bubble_imbalance_and_busy_time_unknown(lossy: int, tmp_path: Path) -> None:
    pipeline = Pipeline([MS, 3 * MS], steps=20).build()
    trace = pipeline.traces[lossy]
    graphs = [event["args"]["correlation"] for event in trace.events if event["name"] == "cudaGraphLaunch"][:10]
    trace.events = [
        event for event in trace.events if event["cat"] != "kernel" or event["args"]["correlation"] not in graphs
    ]
    found = report_of(pipeline, tmp_path)
    assert found.bubble is None
    assert found.findings == []
    (run,) = found.runs
    for place, rank in enumerate(run.ranks):
        record = rank_record(rank, run, RankKey(0, place, 0), 1, 0)
        assert record is not None
        fractions = (record.busy_fraction, record.communication_fraction)
        assert (None in fractions) == (place == lossy)
        assert bool(record.damage) == (place == lossy)


def test_a_window_of_few_steps_claims_nothing(tmp_path: Path) -> None:
    report = report_of(Pipeline([MS, 4 * MS], steps=2).build(), tmp_path)
    assert report.bubble is not None
    assert report.findings == []


def test_imbalance_names_its_stage(tmp_path: Path) -> None:
    report = report_of(Pipeline([4 * MS, 8 * MS, 4 * MS], steps=20, slots=4).build(), tmp_path)
    finding = next(finding for finding in report.findings if finding.id == "pipeline.imbalance")
    assert finding.stage == 1


def test_ranks_that_start_across_a_quarter_edge_share_one_clock(tmp_path: Path) -> None:
    pipeline = Pipeline([MS, 2 * MS, MS], slots=2, base_ns=[BASE_NS, BASE_NS - QUARTER_NS, BASE_NS + 3 * MS]).build()
    bubble = report_of(pipeline, tmp_path).bubble
    assert bubble is not None
    assert [load.busy_fraction for load in bubble.per_stage] == pytest.approx(pipeline.busy_fractions(), abs=1e-5)


@pytest.mark.parametrize("skew_ns", [[0, 5 * MS, -3 * MS], [0, -40 * MS, -40 * MS], [0, 0, 90 * MS]])
def test_clocks_of_other_hosts_are_corrected(skew_ns: list[int], tmp_path: Path) -> None:
    hosts = ["a", "b", "c"]
    pipeline = Pipeline([2 * MS] * 3, steps=30, slots=2, skew_ns=skew_ns, hosts=hosts).build()
    report = report_of(pipeline, tmp_path)
    # What cannot be told from a skew is the time of a transfer, once a hop.
    slack_ns = 2 * Pipeline.TRANSFER_NS + 1000
    assert [rank.clock_offset_ns for rank in report.runs[0].ranks] == pytest.approx(
        [-skew for skew in skew_ns], abs=slack_ns
    )
    assert report.bubble is not None
    assert [load.busy_fraction for load in report.bubble.per_stage] == pytest.approx(
        pipeline.busy_fractions(), abs=0.02
    )


def test_one_host_has_one_clock(tmp_path: Path) -> None:
    report = report_of(Pipeline([2 * MS] * 2, skew_ns=[0, 5 * MS]).build(), tmp_path)
    assert [rank.clock_offset_ns for rank in report.runs[0].ranks] == [0, 0]


def leaks_found(report: TraceReport) -> set[tuple[int | None, int | None, int]]:
    return {
        (rank.identity.stage, row.step, row.launch_ns)
        for run in report.runs
        for rank in run.ranks
        for row in rank.rows
        if not row.expected
    }


@FEW
@given(
    where=st.sets(st.tuples(st.integers(0, 1), st.integers(0, 4)), max_size=8),
    names=st.lists(
        st.sampled_from(["stray_kernel", "other_kernel<float>", "index_kernel", "fill_kernel"]), min_size=1, max_size=3
    ),
    repeat=st.integers(1, 3),
)
def test_every_planted_leak_is_found_and_nothing_else(
    where: set[tuple[int, int]], names: list[str], repeat: int, tmp_path: Path
) -> None:
    leaks = [
        (stage, step * 2, names[(stage + step + k) % len(names)])
        for stage, step in sorted(where)
        for k in range(repeat)
    ]
    pipeline = Pipeline([MS] * 2, steps=12, slots=2, leaks=leaks).build()
    report = report_of(pipeline, tmp_path)
    found, planted = leaks_found(report), pipeline.planted
    assert len(found) == len(planted) == len(leaks)
    fresh = {"stray_kernel", "other_kernel<float>"}
    if {name for _, _, name in leaks} <= fresh:
        assert found == planted
    # An extra launch of a normal kernel right beside a normal one is the same launch to anybody.
    assert {place[:2] for place in found} == {place[:2] for place in planted}
    leaking = [
        (rank.identity.stage, index)
        for rank in report.runs[0].ranks
        for index, step in enumerate(rank.steps)
        if step.verdict == "leak"
    ]
    assert set(leaking) == {(stage, step) for stage, step, _ in leaks}
    assert ("graphs.eager_leak" in ids(report)) == bool(leaks)


def test_missed_steps_and_their_share(tmp_path: Path) -> None:
    few = report_of(Pipeline([MS] * 2, steps=12, slots=2, missed=[(0, 3), (1, 3)]).build(), tmp_path)
    finding = next(finding for finding in few.findings if finding.id == "graphs.eager_decode")
    assert (finding.severity, "2 of 24" in finding.summary) == ("medium", True)
    every = [(stage, step) for stage in range(2) for step in range(12)]
    most = report_of(Pipeline([MS] * 2, steps=12, slots=2, missed=every).build(), tmp_path)
    finding = next(finding for finding in most.findings if finding.id == "graphs.eager_decode")
    assert finding.severity == "high"
    assert any("graphs look switched off" in line for line in finding.evidence)
    assert len([finding for finding in most.findings if finding.id.startswith("graphs.")]) == 1


def test_prefill_without_a_graph_is_expected(tmp_path: Path) -> None:
    every = [(stage, step) for stage in range(2) for step in range(12)]
    report = report_of(Pipeline([4 * MS] * 2, steps=12, slots=2, missed=every, mode="EXTEND").build(), tmp_path)
    assert {step.verdict for rank in report.runs[0].ranks for step in rank.steps} == {"expected_eager"}
    assert not {finding.id for finding in report.findings} & {"graphs.eager_decode", "graphs.eager_leak"}


def test_spans_for_the_live_view_lie_on_the_wall_clock(tmp_path: Path) -> None:
    pipeline = Pipeline([MS] * 2, slots=2, leaks=[(1, 4, "stray_kernel")]).build()
    spans = report_of(pipeline, tmp_path).runs[0].ranks[1].spans
    assert spans.gpu_start_ns == sorted(spans.gpu_start_ns)
    assert spans.gpu_start_ns[0] > BASE_NS
    kinds = [GPU_CLASSES[number] for number in spans.gpu_class]
    assert kinds.count("communication") == 10
    assert kinds.count("replayed") == 10
    assert sum(spans.gpu_unexpected) == 1
    assert kinds[spans.gpu_unexpected.index(1)] == "eager"
    assert spans.gpu_step[spans.gpu_unexpected.index(1)] == 4
    assert {spans.names[name] for name in spans.host_name} == {"step[DECODE bs=8]"}
    busy = sum(
        to - at
        for at, to, kind in zip(spans.gpu_start_ns, spans.gpu_end_ns, kinds, strict=True)
        if kind in ("replayed", "eager")
    )
    assert busy == sum(to - at for at, to in pipeline.work[1])


def test_spans_stay_below_their_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Pipeline([MS] * 2, steps=60).build().write(tmp_path)[1]
    every = analyse_file(path).spans
    monkeypatch.setattr("ppscope.trace.analyse.export_spans", partial(export_spans, limit=50))
    few = analyse_file(path).spans
    assert len(every.gpu_start_ns) > 60
    assert (len(every.host_start_ns), every.host_dropped, every.joined_ns) == (60, 0, 2000)
    assert (len(few.host_start_ns), few.host_dropped) == (50, 10)
    assert (len(few.gpu_start_ns), len(few.gpu_class)) == (50, 50)
    assert few.gpu_start_ns == sorted(few.gpu_start_ns)
    assert few.joined_ns > every.joined_ns


def test_json_has_the_agreed_shape(tmp_path: Path) -> None:
    found = to_json(report_of(Pipeline([MS] * 2, slots=2, leaks=[(1, 4, "stray_kernel")]).build(), tmp_path))
    assert found["schema"] == "ppscope.trace/1"
    assert set(found) == {"schema", "ranks", "bubble", "findings"}
    rank = found["ranks"][1]
    assert (rank["rank"], rank["world_size"], rank["stage"], rank["device"]) == (1, 2, 1, "NVIDIA Test")
    assert rank["kernels"] == {"total": 441, "replayed": 400, "eager": 41, "unknown": 0, "communication": 10}
    assert rank["launches"] == {"eager": 41, "graph": 10, "recorded": 0}
    step = rank["steps"][4]
    assert (step["mode"], step["batch_size"], step["graph_launches"], step["verdict"]) == ("DECODE", 8, 1, "leak")
    assert (step["replayed_kernels"], step["eager_kernels"], step["eager_gpu_us"]) == (40, 4, 12.0)
    assert set(found["bubble"]) >= {"fraction", "per_stage"}
    assert set(found["findings"][0]) == {
        "id",
        "severity",
        "stage",
        "summary",
        "evidence",
        "remedy",
        "provenance",
        "source",
    }


def test_text_fits_eighty_columns(tmp_path: Path) -> None:
    report = report_of(
        Pipeline([MS, 3 * MS, MS], leaks=[(1, 4, "stray_kernel" * 20)], missed=[(0, 1)]).build(), tmp_path
    )
    text = render(report)
    assert max(map(len, text.splitlines())) <= WIDTH
    for part in ("PP2", "graphs.eager_leak", "graphs.eager_decode", "pipeline.bubbles", "DECODE leak"):
        assert part in text


def test_two_runs_of_one_name_and_folder_are_told_apart(tmp_path: Path) -> None:
    paths = Pipeline([MS] * 2, slots=2).build().write(tmp_path, "first") + Pipeline([2 * MS] * 2).build().write(
        tmp_path, "second"
    )
    report = make_report([analyse_file(path) for path in reversed(paths)])
    assert [(run.name, len(run.ranks)) for run in report.runs] == [("second", 2), ("first", 2)]
    assert [[rank.identity.stage for rank in run.ranks] for run in report.runs] == [[0, 1], [0, 1]]


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=8), max_size=4),
    st.integers(0, 30),
    st.integers(1, 60),
)
def test_interval_sums_equal_counting(sets: list[list[tuple[int, int]]], start: int, length: int) -> None:
    window = (start, start + length)
    unions = [Intervals.union(sorted((at, at + long) for at, long in pairs)) for pairs in sets]
    covered = [{tick for at, long in pairs for tick in range(at, at + long)} for pairs in sets]
    inside = range(*window)
    assert [union.total_ns(window) for union in unions] == [sum(tick in ticks for tick in inside) for ticks in covered]
    counts = [sum(tick in ticks for ticks in covered) for tick in inside]
    assert concurrency_ns(unions, window) == [counts.count(number) for number in range(len(sets) + 1)]
