"""What traces prove about stages, and what they do not: hand-made pipelines whose truth is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppscope.records import RankKey
from ppscope.sources.burst_columns import rank_record
from ppscope.trace.analyse import analyse_file
from ppscope.trace.report import TraceReport, make_report
from ppscope.trace.text import render
from ppscope.views import Finding
from tests.kineto import BASE_NS, Pipeline, Trace

US = 1000
MS = 1000 * US


class Stages:
    """The traces of a pipeline in the making; times are nanoseconds since the files' base."""

    def __init__(self, count: int) -> None:
        self.traces = [
            Trace(stage, count, BASE_NS, "node0", f"sglang::scheduler_PP{stage}", 100 + stage, stage)
            for stage in range(count)
        ]

    def step(
        self,
        stage: int,
        at_ns: int,
        gpu_ns: int,
        *,
        host_ns: int = 100 * US,
        name: str = "DECODE bs=16",
        collective: float = 0,
    ) -> None:
        """A step that holds the host for a while and replays a graph, a share of it in a collective (of that kernel's name: SendRecv)."""
        trace = self.traces[stage]
        trace.span(f"step[{name}]", at_ns, host_ns)
        inside_ns = round(gpu_ns * collective)
        kernels = [("gemm", at_ns + 20 * US, gpu_ns - inside_ns)]
        if inside_ns:
            kernels.append(("cross_device_reduce_1stage", at_ns + 20 * US + gpu_ns - inside_ns, inside_ns))
        trace.replay(kernels, at_ns + 10 * US)

    def recorded(self, start_ns: int, end_ns: int) -> None:
        """What the profilers say they recorded."""
        for trace in self.traces:
            trace.recording(start_ns, end_ns - start_ns)

    def report(self, folder: Path) -> TraceReport:
        paths = [
            trace.write(folder / f"1795989460.25-TP-0-PP-{stage}.trace.json") for stage, trace in enumerate(self.traces)
        ]
        return make_report([analyse_file(path) for path in paths])


def finding(report: TraceReport, name: str) -> Finding | None:
    return next((found for found in report.findings if found.id == name), None)


@pytest.mark.parametrize(("size", "severity"), [(16, "medium"), (1, "info")])
def test_stages_whose_hosts_are_busy_are_not_told_to_split_their_batches(
    size: int, severity: str, tmp_path: Path
) -> None:
    pipeline = Stages(2)
    for step in range(30):
        for stage in range(2):
            pipeline.step(stage, step * 5 * MS + stage * 7500 * US, 2 * MS, host_ns=4800 * US, name=f"DECODE bs={size}")
    found = finding(pipeline.report(tmp_path), "pipeline.bubbles")
    assert found is not None
    assert found.severity == severity
    assert "--pp-max-micro-batch-size" not in found.remedy
    assert "Send more" not in found.remedy
    assert "panel 3" in found.remedy


def test_stages_that_take_turns_are_told_to_split_with_the_condition_no_trace_can_check(tmp_path: Path) -> None:
    pipeline = Stages(2)
    for step in range(30):
        for stage in range(2):
            pipeline.step(stage, step * 5 * MS + stage * 2500 * US, 2 * MS)
    found = finding(pipeline.report(tmp_path), "pipeline.bubbles")
    assert found is not None
    assert found.remedy.startswith("Where the requests sit in few of the slots")
    assert "--pp-max-micro-batch-size 8 " in found.remedy


@pytest.mark.parametrize("pause_ns", [0, 30_000 * MS])
def test_time_without_requests_is_no_bubble(pause_ns: int, tmp_path: Path) -> None:
    pipeline = Stages(2)
    for step in range(40):
        at_ns = 5000 * MS + step * 5 * MS + (pause_ns if step >= 20 else 0)
        for stage in range(2):
            pipeline.step(stage, at_ns + stage * MS, 4800 * US)
    pipeline.recorded(0, 10_000 * MS + pause_ns)
    report = pipeline.report(tmp_path)
    assert report.findings == []
    assert report.bubble is not None
    assert report.bubble.fraction < 0.1
    assert 190 * MS < report.bubble.window_us * 1000 < 210 * MS
    (run,) = report.runs
    for place, rank in enumerate(run.ranks):
        record = rank_record(rank, run, RankKey(0, place, 0), 1, 0)
        assert record is not None
        assert record.busy_fraction == pytest.approx(report.bubble.per_stage[place].busy_fraction, abs=1e-6)


@pytest.mark.parametrize("spans", [True, False])
def test_a_slow_host_between_steps_is_a_bubble_however_long(spans: bool, tmp_path: Path) -> None:
    """Also where no step is written into the trace, as up to SGLang 0.5.6."""
    pipeline = Stages(2)
    for step in range(120):
        for stage in range(2):
            pipeline.step(stage, step * 400 * MS + stage * 20 * MS, 15 * MS)
    for trace in pipeline.traces:
        trace.events = [event for event in trace.events if spans or event["cat"] != "user_annotation"]
    report = pipeline.report(tmp_path)
    assert finding(report, "pipeline.bubbles") is not None
    assert report.bubble is not None
    assert report.bubble.fraction > 0.9


@pytest.mark.parametrize("waits", [False, True])
def test_collectives_within_a_stage_are_no_bubble_and_waits_for_another_stage_are(waits: bool, tmp_path: Path) -> None:
    pipeline = Stages(2)
    for step in range(30):
        for stage in range(2):
            pipeline.step(stage, step * 10 * MS, 9900 * US, collective=0.35)
    if waits:
        for trace in pipeline.traces:
            for event in trace.events:
                event["name"] = event["name"].replace("cross_device_reduce_1stage", "ncclDevKernel_SendRecv")
    report = pipeline.report(tmp_path)
    assert (finding(report, "pipeline.bubbles") is not None) == waits
    assert report.bubble is not None
    for load in report.bubble.per_stage:
        parts = (load.busy_fraction, load.collective_fraction, load.communication_fraction, load.idle_fraction)
        assert sum(parts) == pytest.approx(1)
        assert parts[2 if waits else 1] == pytest.approx(0.35, abs=0.02)
    assert ("in collectives among its own ranks" in render(report)) == (not waits)


def test_equal_stages_are_even_whatever_the_edges_of_the_window_hold(tmp_path: Path) -> None:
    pipeline = Stages(4)
    for step in range(15):
        for stage in range(4):
            pipeline.step(stage, step * 10 * MS + stage * 10 * MS, 9900 * US)
    for stage in range(4):
        pipeline.step(stage, 150 * MS + stage * 100 * MS, 99 * MS, name="EXTEND bs=1 toks=4096")
    pipeline.recorded(0, 250 * MS)
    assert finding(pipeline.report(tmp_path), "pipeline.imbalance") is None


@pytest.mark.parametrize("collective", [0.0, 0.625])
def test_time_in_collectives_is_no_imbalance(collective: float, tmp_path: Path) -> None:
    pipeline = Stages(2)
    for step in range(30):
        pipeline.step(0, step * 10 * MS, 3 * MS)
        pipeline.step(1, step * 10 * MS + MS, 8 * MS, collective=collective)
    assert (finding(pipeline.report(tmp_path), "pipeline.imbalance") is None) == bool(collective)


@pytest.mark.parametrize("name", ["run_batch", "step[DECODE bs=8]"])
def test_imbalance_is_claimed_where_the_steps_say_what_they_are(name: str, tmp_path: Path) -> None:
    pipeline = Pipeline([4 * MS, 8 * MS, 4 * MS], steps=20, slots=4).build()
    for trace in pipeline.traces:
        for event in trace.events:
            event["name"] = event["name"].replace("step[DECODE bs=8]", name)
    report = make_report([analyse_file(path) for path in pipeline.write(tmp_path)])
    found = finding(report, "pipeline.imbalance")
    if name == "run_batch":
        assert found is None
    else:
        assert found is not None
        assert found.stage == 1
        assert "20 steps" in found.evidence[0]


@pytest.mark.parametrize("span", [None, "run_batch"])
def test_where_no_step_says_that_it_decodes_nothing_is_said_of_graphs(span: str | None, tmp_path: Path) -> None:
    trace = Trace()
    for step in range(10):
        if span:
            trace.span(span, step * MS, MS)
        for launch in range(300):
            at_ns = step * MS + launch * US
            trace.eager("gemm", at_ns, at_ns + 20 * US, US)
    text = " ".join(render(make_report([analyse_file(trace.write(tmp_path / "t.json"))])).split())
    assert "Nothing found" not in text
    assert "No decode step can be told in these files" in text
    assert "3000 kernels were launched one by one, 0 graphs" in text


@pytest.mark.parametrize(("start_us", "length_us"), [(0.0, 1e19), (1e19, 1.0), (0.0, -50.0)])
def test_a_damaged_record_of_the_recording_costs_itself_alone(
    start_us: float, length_us: float, tmp_path: Path
) -> None:
    pipeline = Pipeline([MS] * 2, slots=2).build()
    for trace in pipeline.traces:
        trace.recording(0, 1).update(ts=start_us, dur=length_us)
    (run,) = make_report([analyse_file(path) for path in pipeline.write(tmp_path)]).runs
    for place, rank in enumerate(run.ranks):
        record = rank_record(rank, run, RankKey(0, place, 0), 1, 0)
        assert record is not None
        assert 0 <= record.start_ns <= record.end_ns < 2**63


def test_a_kernel_of_negative_length_is_dropped_and_counted(tmp_path: Path) -> None:
    trace = Trace()
    trace.eager("gemm", 0, 10 * US, 5 * US)
    trace.eager("gemm", 10 * US, 20 * US, -5 * US)
    found = analyse_file(trace.write(tmp_path / "t.json"))
    assert (found.kernels.total, found.dropped_events) == (1, 1)
