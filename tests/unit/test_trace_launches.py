"""Origins of kernels, steps of launches, and verdicts, on hand-made traces of one rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppscope.trace.analyse import RankAnalysis, analyse_file
from ppscope.trace.verdicts import BASELINE_STEPS
from tests.kineto import Trace

US = 1000
STEP_NS = 1000 * US


def analysed(trace: Trace, folder: Path) -> RankAnalysis:
    return analyse_file(trace.write(folder / "t.json"))


def replayed_step(
    trace: Trace, at_ns: int, *, eager: int = 2, eager_ns: int = US, graphs: int = 1, name: str = "step[DECODE bs=4]"
) -> None:
    trace.span(name, at_ns, STEP_NS)
    for graph in range(graphs):
        kernels = [(f"gemm_{index}", at_ns + (50 + index + graph * 40) * US, US) for index in range(35)]
        trace.replay(kernels, at_ns + (20 + graph) * US)
    for index in range(eager):
        trace.eager(f"small_{index % 3}", at_ns + 30 * US + index * 100, at_ns + 500 * US + index * eager_ns, eager_ns)


def verdicts(found: RankAnalysis) -> list[str]:
    return [step.verdict for step in found.steps]


def test_origin_is_by_correlation_alone(tmp_path: Path) -> None:
    trace = Trace()
    trace.replay([("one_kernel_replay", 100, 10)], 50)
    trace.eager("eager", 60, 200, 10)
    for kernel in ("twin", "twin"):
        trace.gpu(kernel, 300, 10, 77)
    trace.gpu("graph node of an unseen launch", 320, 10, 78)
    trace.gpu("Memset (Device)", 330, 10, trace.call("cudaMemsetAsync", 70), category="gpu_memset")
    trace.call("cudaLaunchKernel", 90)
    found = analysed(trace, tmp_path)
    kernels = found.kernels
    assert (kernels.total, kernels.replayed, kernels.eager, kernels.unknown) == (5, 1, 1, 3)
    assert (found.launches.eager, found.launches.graph, found.launches.recorded, found.memory_operations) == (
        2,
        1,
        0,
        1,
    )


@pytest.mark.parametrize(("begin", "end"), [(True, True), (False, True), (True, False)])
def test_launches_during_capture_are_recorded(begin: bool, end: bool, tmp_path: Path) -> None:
    trace = Trace()
    trace.span("ProfilerStep#3", 0, 100_000)
    if begin:
        trace.eager("before", 500, 900, 10)
        trace.call("cudaStreamBeginCapture", 1000)
    for index in range(40):
        trace.call("cudaLaunchKernel", 1100 + index)
    trace.eager("runs on another stream", 1150, 1200, 10)
    if end:
        trace.call("cudaStreamEndCapture", 2000)
        trace.eager("after", 2100, 2500, 10)
    trace.call("cudaLaunchKernel", 1100, tid=999)
    found = analysed(trace, tmp_path)
    assert found.launches.recorded == 40
    assert found.launches.eager == 2 + begin + end
    assert verdicts(found) == ["unknown"]


def test_a_launch_belongs_to_the_step_of_its_cpu_time_and_thread(tmp_path: Path) -> None:
    trace = Trace()
    trace.span("step[DECODE bs=4]", 0, 1000)
    trace.span("step[DECODE bs=4]", 2000, 1000)
    trace.span("step[EXTEND bs=1 toks=9]", 0, 9000, tid=555)
    # The kernels run long after their steps.
    trace.replay([("late", 50_000, 10)], 100)
    trace.replay([("later", 51_000, 10)], 2100)
    # A thread without steps of its own works for the process, as autograd's does.
    correlation = trace.call("cudaLaunchKernel", 2500, tid=777)
    trace.gpu("helper", 52_000, 10, correlation)
    trace.eager("between steps", 1500, 53_000, 10)
    found = analysed(trace, tmp_path)
    by_name = {(step.step.mode, step.step.start_ns): step for step in found.steps}
    assert (by_name["DECODE", 0].replayed_kernels, by_name["DECODE", 0].eager_kernels) == (1, 0)
    assert (by_name["DECODE", 2000].replayed_kernels, by_name["DECODE", 2000].eager_kernels) == (1, 1)
    assert by_name["EXTEND", 0].graph_launches == 0


def test_the_innermost_family_of_spans_counts(tmp_path: Path) -> None:
    trace = Trace()
    trace.span("ProfilerStep#1", 0, 10 * STEP_NS)
    trace.span("execute_4_context_0(1)_generation_4(4)", 0, 9 * STEP_NS)
    trace.span("scheduler.run_batch", 0, STEP_NS)
    trace.span("run_batch", 0, STEP_NS)
    assert [step.step.name[:9] for step in analysed(trace, tmp_path).steps] == ["execute_4"]
    replayed_step(trace, 100)
    assert [step.step.name for step in analysed(trace, tmp_path).steps] == ["step[DECODE bs=4]"]
    loops = Trace()
    loops.span("scheduler.run_batch", 0, STEP_NS)
    loops.span("run_batch", 1, STEP_NS)
    assert [step.step.name for step in analysed(loops, tmp_path).steps] == ["run_batch"]


@pytest.mark.parametrize("steps", [BASELINE_STEPS - 1, BASELINE_STEPS, 3 * BASELINE_STEPS])
def test_a_baseline_needs_enough_steps(steps: int, tmp_path: Path) -> None:
    trace = Trace()
    for index in range(steps):
        replayed_step(trace, index * STEP_NS * 2)
    at_ns = 2 * STEP_NS
    trace.eager("stray", at_ns + 40 * US, at_ns + 900 * US, US)
    found = analysed(trace, tmp_path)
    known = steps >= BASELINE_STEPS
    assert verdicts(found) == ["leak" if index == 1 and known else "replayed" for index in range(steps)]
    assert (found.baseline is not None) == known
    assert found.unexpected == known


@pytest.mark.parametrize("rare", [1, 2, BASELINE_STEPS - 1])
@pytest.mark.parametrize("padded", [False, True])
def test_a_rare_batch_size_is_judged_by_its_mode_but_for_what_all_its_steps_launch(
    padded: bool, rare: int, tmp_path: Path
) -> None:
    trace = Trace()
    for index in range(12):
        replayed_step(trace, index * STEP_NS * 2, name=f"step[DECODE bs={3 if index < rare else 4}]")
        if padded and index < rare:
            for place in (40 * US, 41 * US):
                trace.eager("fill", index * STEP_NS * 2 + place, index * STEP_NS * 2 + 900 * US, US)
    trace.eager("stray", 42 * US, 910 * US, US)
    first = "leak" if rare > 1 else "replayed"
    assert verdicts(analysed(trace, tmp_path)) == [first] + ["replayed"] * 11


def test_batch_sizes_that_all_differ_have_their_launches_judged_by_none(tmp_path: Path) -> None:
    trace = Trace()
    for index in range(12):
        replayed_step(trace, index * STEP_NS * 2, eager=2 + index % 3, name=f"step[DECODE bs={index + 1}]")
    found = analysed(trace, tmp_path)
    assert verdicts(found) == ["replayed"] * 12
    assert found.baseline is not None


def test_the_draft_models_prefill_is_a_prefill(tmp_path: Path) -> None:
    trace = Trace()
    for index in range(10):
        replayed_step(trace, index * STEP_NS * 2, name="step[VERIFY bs=2]")
    for index in range(10, 14):
        trace.span("step[DRAFT bs=2 toks=900]", index * STEP_NS * 2, STEP_NS)
        for launch in range(60):
            at_ns = index * STEP_NS * 2 + (launch + 1) * US
            trace.eager("gemm", at_ns, at_ns + 20 * US, US)
    assert verdicts(analysed(trace, tmp_path)) == ["replayed"] * 10 + ["expected_eager"] * 4


def test_many_launches_beside_every_graph_are_a_leak_even_when_normal(tmp_path: Path) -> None:
    trace = Trace()
    for index in range(6):
        replayed_step(trace, index * STEP_NS * 2, eager=60)
    found = analysed(trace, tmp_path)
    assert verdicts(found) == ["leak"] * 6
    assert found.unexpected == 360


def test_a_graph_in_pieces_has_eager_kernels_by_design(tmp_path: Path) -> None:
    trace = Trace()
    for index in range(6):
        replayed_step(trace, index * STEP_NS * 2, eager=60, graphs=10, eager_ns=2 * US)
    assert verdicts(analysed(trace, tmp_path)) == ["replayed"] * 6


def test_communication_and_memory_are_no_leak(tmp_path: Path) -> None:
    trace = Trace()
    for index in range(6):
        replayed_step(trace, index * STEP_NS * 2)
    trace.eager("ncclDevKernel_SendRecv()", 40 * US, 900 * US, US, stream=20)
    trace.gpu("Memcpy DtoH", 910 * US, US, trace.call("cudaMemcpyAsync", 41 * US), category="gpu_memcpy")
    found = analysed(trace, tmp_path)
    assert verdicts(found) == ["replayed"] * 6
    assert (found.kernels.communication, found.kernels.eager, found.steps[0].memory_operations) == (1, 13, 1)


def test_a_step_cut_by_the_window_is_unknown(tmp_path: Path) -> None:
    trace = Trace()
    for index in range(1, 7):
        replayed_step(trace, index * STEP_NS * 2)
    trace.span("step[DECODE bs=4]", 0, STEP_NS)
    trace.eager("small_0", 10 * US, 20 * US, US)
    assert verdicts(analysed(trace, tmp_path)) == ["unknown"] + ["replayed"] * 6


def test_a_graph_launch_whose_kernels_are_cut_off_still_replayed(tmp_path: Path) -> None:
    trace = Trace()
    trace.span("step[DECODE bs=4]", 0, STEP_NS)
    trace.call("cudaGraphLaunch", 10)
    assert verdicts(analysed(trace, tmp_path)) == ["replayed"]


def without_kernels(trace: Trace, graphs: int) -> None:
    """Takes away what the first graph launches ran, as a lost buffer of CUPTI does."""
    numbers = [event["args"]["correlation"] for event in trace.events if event["name"] == "cudaGraphLaunch"][:graphs]
    trace.events = [
        event
        for event in trace.events
        if event["cat"] not in ("kernel", "gpu_memcpy") or event["args"]["correlation"] not in numbers
    ]


@pytest.mark.parametrize(("steps", "missing"), [(20, 0), (20, 2), (20, 3), (1, 1), (6, 6)])
@pytest.mark.parametrize("eager", [2, 60])
def test_lost_kernels_of_graphs_prove_neither_idleness_nor_a_leak(
    eager: int, steps: int, missing: int, tmp_path: Path
) -> None:
    trace = Trace()
    for index in range(steps):
        replayed_step(trace, index * STEP_NS * 2, eager=eager, eager_ns=US // 10)
    without_kernels(trace, missing)
    found = analysed(trace, tmp_path)
    assert found.gpu_lost == (missing > 0.1 * steps)
    assert [line.split(" have")[0] for line in found.damage] == (
        [f"{missing} of {steps} graph launches"] if found.gpu_lost else []
    )
    assert verdicts(found) == ["replayed"] * steps


def test_a_graph_of_memory_operations_alone_has_lost_nothing(tmp_path: Path) -> None:
    trace = Trace()
    trace.span("step[DECODE bs=4]", 0, STEP_NS)
    trace.gpu("Memcpy DtoD", 30 * US, US, trace.replay([], 10 * US), category="gpu_memcpy")
    assert analysed(trace, tmp_path).damage == []


def test_a_misplaced_launch_drills_down_to_its_line(tmp_path: Path) -> None:
    trace = Trace()
    for index in range(6):
        replayed_step(trace, index * STEP_NS * 2)
    trace.python("sglang/srt/managers/scheduler.py(10): run_batch", 0, STEP_NS)
    trace.python("sglang/srt/layers/sampler.py(20): forward", 39 * US, 10 * US)
    trace.python("nn.Module: Sampler_0", 39 * US + 50, 9 * US)
    trace.python("<built-in method add of type object>", 39 * US + 60, 9 * US)
    trace.python("torch/_ops.py(30): __call__", 39 * US + 100, 9 * US)
    trace.operator("aten::add", 39 * US + 200, 8 * US)
    trace.operator("aten::mul", 45 * US, US)
    trace.eager("stray", 40 * US, 900 * US, 7 * US)
    found = analysed(trace, tmp_path)
    row = next(row for row in found.rows if not row.expected)
    assert (row.kernel, row.call, row.stream, row.duration_ns, row.step) == ("stray", "cudaLaunchKernel", 7, 7 * US, 0)
    assert row.gap_ns == (900 - 502) * US
    assert (row.caller.op, row.caller.line) == ("aten::add", "sglang/srt/layers/sampler.py(20): forward")
    assert len(row.caller.stack) == 5
    assert {row.expected for row in found.rows} == {True, False}
