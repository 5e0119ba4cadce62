"""Real traces of other people: every count equals the table beside them, and no alarm is raised where nothing is wrong."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from ppscope.trace.align import join_steps
from ppscope.trace.analyse import RankAnalysis, analyse_file
from ppscope.trace.report import make_report, to_json
from ppscope.trace.text import WIDTH, render

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
pytestmark = pytest.mark.skipif(
    not TRACES.is_dir(), reason="the real traces (../shared/traces) are not on this machine"
)

_cache: dict[str, RankAnalysis] = {}


def analysed(name: str) -> RankAnalysis:
    if name not in _cache:
        _cache[name] = analyse_file(TRACES / name)
    return _cache[name]


def table() -> list[dict[str, str]]:
    if not TRACES.is_dir():
        return []
    lines = [line for line in (TRACES / "README.md").read_text().splitlines() if line.startswith("|")]
    keys = [key.strip() for key in lines[0].strip("|").split("|")]
    return [dict(zip(keys, (cell.strip() for cell in line.strip("|").split("|")), strict=True)) for line in lines[2:]]


def the_file(part: str) -> RankAnalysis:
    names = [row["file"] for row in table() if part in row["file"]]
    assert len(names) == 1, names
    return analysed(names[0])


@pytest.mark.parametrize("row", table(), ids=lambda row: row["file"][:60])
def test_counts_equal_the_readme(row: dict[str, str]) -> None:
    found = analysed(row["file"])
    calls = sum(int(count) for count in re.findall(r"=(\d+)", row["kernel-launch calls"]))
    assert {
        "events": found.events,
        "kernels": found.kernels.total,
        "calls": found.launches.eager + found.launches.recorded,
        "graph launches": found.launches.graph,
        "kernels from graph": found.kernels.replayed,
        "no launch": found.kernels.unknown,
    } == {"calls": calls} | {
        key: int(row[key]) for key in ("events", "kernels", "graph launches", "kernels from graph", "no launch")
    }
    kernels = found.kernels
    assert kernels.total == kernels.replayed + kernels.eager + kernels.unknown
    nccl = int(row["NCCL kernels (SendRecv)"].split()[0])
    # On the B200 the all-reduces are custom kernels.
    assert kernels.communication >= nccl if "b200" in row["file"] else kernels.communication == nccl
    rank, world_size = row["rank/world"].split("/")
    assert (found.identity.rank, found.identity.world_size) == tuple(
        None if n == "-" else int(n) for n in (rank, world_size)
    )
    if found.identity.device is not None:
        assert found.identity.device == row["device"]
    assert found.window_ns is not None
    assert datetime.fromtimestamp(found.window_ns[0] / 1e9, timezone.utc).date().isoformat() == row["captured"]
    assert (found.dropped_events, found.mended_events, found.damage) == (0, 0, [])


def test_control_is_eager_and_test_replays_with_a_leak() -> None:
    control, test = the_file("trace_diff__control"), the_file("trace_diff__test")
    assert [(step.verdict, step.graph_launches, step.eager_kernels) for step in control.steps] == [
        ("eager", 0, 1428)
    ] * 6
    assert [(step.verdict, step.graph_launches, step.replayed_kernels, step.eager_kernels) for step in test.steps] == [
        ("leak", 2, 744, 811)
    ] * 6
    report = make_report([test])
    assert [(finding.id, finding.severity) for finding in report.findings] == [("graphs.eager_leak", "medium")]
    assert any("aten::" in line for line in report.findings[0].evidence)
    # Nothing says that the control should have had graphs.
    assert make_report([control]).findings == []


def test_sglang_decode_is_one_replay() -> None:
    found = the_file("sglang_Qwen3-8B_decode")
    (step,) = found.steps
    assert (step.step.mode, step.step.batch_size, step.verdict) == ("DECODE", 32, "replayed")
    assert (step.graph_launches, step.replayed_kernels, step.eager_kernels) == (1, 544, 6)
    normal = [row.caller.line or "" for row in found.rows]
    assert any("init_forward_metadata_replay_cuda_graph" in line for line in normal)


@pytest.mark.parametrize(
    ("part", "verdicts"),
    [
        ("sglang_Qwen3-8B_decode", {"replayed"}),
        ("sglang_Qwen3-8B_prefilldecode", {"expected_eager"}),
        ("vllm_decode_full__graph_execution", {"replayed"}),
        ("b200__eager", {"expected_eager"}),
        ("bs_32_rank0", {"unknown"}),
        ("graph_capture_rank_0", set()),
        ("xdit_flux", {"replayed"}),
        ("worker0.1623213129365", {"eager"}),
        ("resnet_kineto", set()),
        ("cpu_only", {"unknown"}),
    ],
)
def test_no_alarm_where_nothing_is_wrong(part: str, verdicts: set[str]) -> None:
    found = the_file(part)
    assert {step.verdict for step in found.steps} == verdicts
    report = make_report([found])
    assert report.findings == []
    assert max(map(len, render(report).splitlines())) <= WIDTH


@pytest.mark.parametrize(("part", "recorded"), [("bs_32_rank0", 544), ("graph_capture_rank_0", 421)])
def test_capture_is_recorded_not_eager(part: str, recorded: int) -> None:
    assert the_file(part).launches.recorded == recorded


def test_ranks_of_one_job_are_one_run_without_stages() -> None:
    names = [row["file"] for row in table() if "dlrm_kineto" in row["file"]]
    report = make_report([analysed(name) for name in reversed(names)])
    (run,) = report.runs
    assert [rank.identity.rank for rank in run.ranks] == list(range(8))
    assert (run.stages, report.bubble, report.findings) == ({}, None, [])


@pytest.mark.parametrize(
    ("folder", "stages", "steps"), [("pp2", 2, 5), ("pp2_with_stack", 2, 5), ("pp4_uneven", 4, 16)]
)
def test_sglang_on_cpu_gives_every_stage_its_spans_and_steps(folder: str, stages: int, steps: int) -> None:
    report = make_report([analyse_file(path) for path in sorted((TRACES / "sglang_cpu" / folder).iterdir())])
    (run,) = report.runs
    assert list(run.stages) == list(range(stages))
    assert [len(rank.steps) for rank in run.ranks] == [steps] * stages
    assert run.window_ns is not None
    for before, after in zip(run.ranks, run.ranks[1:], strict=False):
        pairs = join_steps(before, after)
        assert len(pairs) == steps
        # On one clock a step reaches the next stage after it began on the one before.
        assert all(left.step.start_ns + before.base_ns < right.step.start_ns + after.base_ns for left, right in pairs)
    for rank in run.ranks:
        spans = {rank.spans.names[name] for name in rank.spans.host_name}
        assert {"run_batch", "recv_requests", "process_batch_result", "gloo:recv"} <= spans
        assert {step.step.mode for step in rank.steps} == {"DECODE"}
    found: dict[str, Any] = to_json(report)
    assert (found["bubble"], found["findings"]) == (None, [])
    assert [rank["stage"] for rank in found["ranks"]] == list(range(stages))
