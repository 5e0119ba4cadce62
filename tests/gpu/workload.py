"""What is recorded: decode steps that replay one CUDA graph, steps that launch the same kernels one by one, and leaks; all counted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple


class Truth(NamedTuple):
    """How many there are of everything; a step of either kind has `baseline` normal launches besides."""

    replayed_steps: int = 30
    eager_steps: int = 5
    kernels: int = 40
    baseline: int = 2
    leaks: int = 3


def record(folder: Path, truth: Truth) -> tuple[Path, dict[str, Any]]:
    """Record on the GPU; returns the trace and what was measured beside it (times in microseconds)."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    device = torch.device("cuda", 0)
    x = torch.ones(1 << 20, device=device)
    small = torch.zeros(256, device=device)

    def forward() -> None:
        # One elementwise kernel each.
        for _ in range(truth.kernels // 2):
            x.mul_(1.0001)
            x.add_(0.0001)

    def inputs() -> None:
        for _ in range(truth.baseline):
            small.add_(1.0)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            forward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward()
    leak_at = {5 + 7 * index for index in range(truth.leaks)}

    def replays() -> None:
        for step in range(truth.replayed_steps):
            with record_function("step[DECODE bs=8]"):
                inputs()
                graph.replay()
                if step in leak_at:
                    small.sqrt_()
            torch.cuda.synchronize()

    def eagers() -> None:
        for _ in range(truth.eager_steps):
            with record_function("step[DECODE bs=64]"):
                inputs()
                forward()
            torch.cuda.synchronize()

    measured = {"torch": torch.__version__, "device": torch.cuda.get_device_name(0), "cuda": torch.version.cuda}
    for name, run, steps in (("replay", replays, truth.replayed_steps), ("eager", eagers, truth.eager_steps)):
        run()
        began = time.perf_counter()
        run()
        measured[f"{name}_step_us"] = round((time.perf_counter() - began) / steps * 1e6, 1)
    # The first profile of a process starts CUPTI and may miss kernels (sglang #22589).
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]):
        replays()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        replays()
        eagers()
    path = folder / "gpu-TP-0-PP-0.trace.json"
    began = time.perf_counter()
    profiler.export_chrome_trace(str(path))
    measured["export_s"] = round(time.perf_counter() - began, 2)
    measured["trace_bytes"] = path.stat().st_size
    return path, measured


def make_up(folder: Path, truth: Truth) -> tuple[Path, dict[str, Any]]:
    """The same steps as the generator of the unit tests writes them."""
    from tests.kineto import Trace

    trace, at = Trace(), 1_000_000
    leak_at = {5 + 7 * index for index in range(truth.leaks)}
    for step in range(truth.replayed_steps + truth.eager_steps):
        begin, replayed = at, step < truth.replayed_steps
        for _ in range(truth.baseline):
            trace.eager("vectorized_add", at, at + 2_000, 1_000)
            at += 3_000
        names = [("mul_kernel" if index % 2 else "add_kernel") for index in range(truth.kernels)]
        if replayed:
            trace.replay([(name, at + 5_000 + index * 2_000, 1_500) for index, name in enumerate(names)], at)
            at += 6_000
            if step in leak_at:
                trace.eager("sqrt_kernel", at, at + 100_000, 1_000)
        else:
            for name in names:
                at += 2_000
                trace.eager(name, at, at + 1_000, 1_500)
        at += 4_000
        trace.span(f"step[DECODE bs={8 if replayed else 64}]", begin - 500, at - begin + 500)
        at += 200_000
    for event in trace.events:
        if event["cat"] == "kernel":
            replay = event["args"]["correlation"] in _graph_correlations(trace)
            event["args"]["graph node id"] = 1 if replay else 0
    return trace.write(folder / "gpu-TP-0-PP-0.trace.json"), {"torch": None, "device": "made up"}


def _graph_correlations(trace: Any) -> set[int]:
    return {event["args"]["correlation"] for event in trace.events if event["name"] == "cudaGraphLaunch"}
