"""Kineto-shaped traces with known truth: single events, every layout, and whole pipelines."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = dict[str, Any]
BASE_NS = 1_790_857_026_000_000_000
"""A value of baseTimeNanoseconds: the start of a quarter of a year."""
QUARTER_NS = 7_889_238_000_000_000
LAYOUTS = ("kineto", "line", "indent2", "indent4", "bare", "metadata_first", "metadata_last")


@dataclass
class Trace:
    """One rank's file in the making; times are nanoseconds since `base_ns`, which is written to the file."""

    rank: int = 0
    world_size: int = 1
    base_ns: int = BASE_NS
    host: str = "node0"
    title: str = "sglang::scheduler"
    pid: int = 100
    device: int = 0
    events: list[Json] = field(default_factory=list)
    correlation: int = 1000

    def add(
        self, category: str, name: str, start_ns: int, duration_ns: int, *, pid: int, tid: int, **args: Any
    ) -> Json:
        event: Json = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
        event |= {"ts": start_ns / 1000, "dur": duration_ns / 1000, "args": args}
        self.events.append(event)
        return event

    def span(self, name: str, start_ns: int, duration_ns: int, tid: int | None = None) -> None:
        self.add("user_annotation", name, start_ns, duration_ns, pid=self.pid, tid=tid or self.pid)

    def recording(self, start_ns: int, duration_ns: int) -> Json:
        """What the profiler says it recorded."""
        return self.add("Trace", "PyTorch Profiler (0)", start_ns, duration_ns, pid=self.pid, tid=self.pid)

    def operator(self, name: str, start_ns: int, duration_ns: int) -> None:
        self.add("cpu_op", name, start_ns, duration_ns, pid=self.pid, tid=self.pid)

    def python(self, name: str, start_ns: int, duration_ns: int) -> None:
        self.add("python_function", name, start_ns, duration_ns, pid=self.pid, tid=self.pid)

    def call(self, name: str, start_ns: int, duration_ns: int = 2000, tid: int | None = None) -> int:
        self.correlation += 1
        self.add(
            "cuda_runtime", name, start_ns, duration_ns, pid=self.pid, tid=tid or self.pid, correlation=self.correlation
        )
        return self.correlation

    def gpu(
        self, name: str, start_ns: int, duration_ns: int, correlation: int, *, stream: int = 7, category: str = "kernel"
    ) -> None:
        args = {"correlation": correlation, "stream": stream, "device": self.device}
        self.add(category, name, start_ns, duration_ns, pid=self.device, tid=stream, **args)

    def eager(self, kernel: str, launch_ns: int, start_ns: int, duration_ns: int, stream: int = 7) -> int:
        correlation = self.call("cudaLaunchKernel", launch_ns)
        self.gpu(kernel, start_ns, duration_ns, correlation, stream=stream)
        return correlation

    def replay(self, kernels: list[tuple[str, int, int]], launch_ns: int) -> int:
        """`kernels` are (name, start_ns, duration_ns)."""
        correlation = self.call("cudaGraphLaunch", launch_ns, 5000)
        for name, start_ns, duration_ns in kernels:
            self.gpu(name, start_ns, duration_ns, correlation)
        return correlation

    def metadata(self) -> Json:
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": index, "name": "NVIDIA Test"} for index in range(self.device + 1)],
            "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": self.world_size},
            "host_name": self.host,
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": self.base_ns,
            "traceName": "trace.json",
        }

    def all_events(self) -> list[Json]:
        first: Json = {
            "name": "process_name",
            "ph": "M",
            "ts": 0.0,
            "pid": self.pid,
            "tid": 0,
            "args": {"name": self.title},
        }
        return [first, *self.events]

    def text(self, layout: str = "kineto") -> bytes:
        return layout_text(self.all_events(), self.metadata(), layout)

    def write(self, path: Path, layout: str = "kineto") -> Path:
        text = self.text(layout)
        path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)
        return path


def merged_trace(traces: dict[str, Trace]) -> Json:
    """One trace of several, by label, as SGLang's ProfileMerger makes it (`merge_profiles`)."""
    merged: Json = {"traceEvents": []}
    for label, trace in traces.items():
        merged["traceEvents"] += [{**event, "pid": f"[{label}] {event['pid']}"} for event in trace.all_events()]
        merged = {**trace.metadata(), **merged}
    return merged


def _kineto_event(event: Json) -> str:
    args = event.get("args", {})
    rest = {key: value for key, value in event.items() if key not in ("args", "ts", "dur")}
    lines = [f"    {json.dumps(rest)[1:-1]},"]
    times = ", ".join(f'"{key}": {json.dumps(event[key])}' for key in ("ts", "dur") if key in event)
    lines.append(f"    {times},")
    lines.append('    "args": {\n      ' + json.dumps(args)[1:-1] + "\n    }")
    return "  {\n" + "\n".join(lines) + "\n  }"


def layout_text(events: list[Json], metadata: Json, layout: str) -> bytes:
    """The bytes of a trace file in one of LAYOUTS."""
    if layout == "bare":
        return json.dumps(events).encode()
    if layout == "line":
        return json.dumps({**metadata, "traceEvents": events}).encode()
    if layout.startswith("indent"):
        return json.dumps({**metadata, "traceEvents": events}, indent=int(layout[6:])).encode()
    head = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in metadata.items())
    tail = "".join(f",\n  {json.dumps(key)}: {json.dumps(value)}" for key, value in metadata.items())
    body = ",\n".join(map(_kineto_event, events))
    if layout == "metadata_last":
        return f'\n{{\n  "traceEvents": [\n{body}\n  ]{tail}\n}}'.encode()
    if layout == "metadata_first":
        return f'{{\n{head}  "traceEvents": [\n{body}\n  ]\n}}'.encode()
    return f'\n{{\n{head}  "traceEvents": [\n{body}\n  ],\n  "trailing": {{"a": [1, 2]}}\n}}\n'.encode()


@dataclass
class Pipeline:
    """A run over several stages, simulated: what is written, and what is true about it.

    Each micro-batch runs on stage 0, 1, … in turn; `slots` of them are in flight. A stage that waits runs a SendRecv kernel.
    `compute_ns` is the time of a stage's graph per step. `leaks` are (stage, step, kernel) of extra eager kernels beside the replay,
    `missed` (stage, step) that launch the graph's kernels one by one. A host's clock is off by `skew_ns`. `base_ns` are the stages'
    baseTimeNanoseconds.
    """

    compute_ns: list[int]
    steps: int = 10
    slots: int = 1
    leaks: list[tuple[int, int, str]] = field(default_factory=list)
    missed: list[tuple[int, int]] = field(default_factory=list)
    skew_ns: list[int] = field(default_factory=list)
    base_ns: list[int] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    kernels: int = 40
    batch_size: int = 8
    mode: str = "DECODE"
    baseline: tuple[str, ...] = ("fill_kernel", "index_kernel", "argmax_kernel")
    traces: list[Trace] = field(default_factory=list)
    work: list[list[tuple[int, int]]] = field(default_factory=list)
    """Per stage, when it was busy: wall time without skew."""
    planted: set[tuple[int, int, int]] = field(default_factory=set)
    """(stage, step, launch time on the file's clock) of every leak."""

    TRANSFER_NS = 100_000
    SMALL_NS = 3_000
    TURN_NS = 20_000
    START_NS = BASE_NS + 5_000_000_000_000

    def build(self) -> Pipeline:
        stages = len(self.compute_ns)
        self.skew_ns = self.skew_ns or [0] * stages
        self.base_ns = self.base_ns or [BASE_NS] * stages
        self.hosts = self.hosts or ["node0"] * stages
        self.work = [[] for _ in range(stages)]
        self.traces = [
            Trace(
                stage,
                stages,
                self.base_ns[stage],
                self.hosts[stage],
                f"sglang::scheduler_PP{stage}",
                100 + stage,
                stage,
            )
            for stage in range(stages)
        ]
        free_ns = [self.START_NS] * stages
        finished: list[int] = []
        for step in range(self.steps):
            ready_ns = self.START_NS if step < self.slots else finished[step - self.slots]
            for stage in range(stages):
                ready_ns = free_ns[stage] = self._step(stage, step, free_ns[stage] + self.TURN_NS, ready_ns)
            finished.append(ready_ns)
        return self

    def _step(self, stage: int, step: int, launch_ns: int, ready_ns: int) -> int:
        """Writes one step of one stage; returns when it is done."""
        trace = self.traces[stage]
        shift_ns = self.skew_ns[stage] - self.base_ns[stage]
        host_ns = launch_ns + shift_ns
        begin_ns = max(ready_ns, launch_ns) + self.TRANSFER_NS
        gpu_ns = begin_ns + shift_ns
        if stage > 0:
            wait_ns = host_ns + 400
            trace.eager(
                "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage)", host_ns, wait_ns, gpu_ns - wait_ns, stream=20
            )
        extra = [name for where, when, name in self.leaks if (where, when) == (stage, step)]
        small = [(name, False) for name in self.baseline[:1]] + [(name, True) for name in extra[::2]]
        after = [(name, False) for name in self.baseline[1:]] + [(name, True) for name in extra[1::2]]
        each_ns = self.compute_ns[stage] // self.kernels
        names = [f"gemm_kernel_{index % 4}" for index in range(self.kernels)]
        span_ns = host_ns = host_ns + 1_000
        for place, group in enumerate((small, [], after)):
            for name, is_leak in group:
                host_ns += 3_000
                trace.eager(name, host_ns, gpu_ns, self.SMALL_NS)
                gpu_ns += self.SMALL_NS
                if is_leak:
                    self.planted.add((stage, step, host_ns))
            if place != 1:
                continue
            if (stage, step) in self.missed:
                for index, name in enumerate(names):
                    trace.eager(name, host_ns + 3_000 + index * 10, gpu_ns + index * each_ns, each_ns)
            else:
                trace.replay(
                    [(name, gpu_ns + index * each_ns, each_ns) for index, name in enumerate(names)], host_ns + 3_000
                )
            host_ns += 6_000
            gpu_ns += each_ns * self.kernels
        size = f"bs={self.batch_size}" + (" toks=64" if self.mode == "EXTEND" else "")
        trace.span(f"step[{self.mode} {size}]", span_ns, host_ns + 4_000 - span_ns)
        self.work[stage].append((begin_ns, gpu_ns - shift_ns))
        return gpu_ns - shift_ns

    def write(self, folder: Path, profile_id: str = "1795989460.25", layout: str = "kineto") -> list[Path]:
        return [
            trace.write(folder / f"{profile_id}-TP-0-PP-{stage}.trace.json.gz", layout)
            for stage, trace in enumerate(self.traces)
        ]

    def window_ns(self) -> tuple[int, int]:
        """What all stages recorded, in wall time without skew: from the latest first event to the earliest last one."""
        starts, ends = [], []
        for trace, base_ns, skew_ns in zip(self.traces, self.base_ns, self.skew_ns, strict=True):
            starts.append(min(round(event["ts"] * 1000) for event in trace.events) + base_ns - skew_ns)
            ends.append(max(round((event["ts"] + event["dur"]) * 1000) for event in trace.events) + base_ns - skew_ns)
        return max(starts), min(ends)

    def busy_fractions(self) -> list[float]:
        """Each stage's share of the common window in which it worked."""
        start_ns, end_ns = self.window_ns()
        return [
            sum(max(0, min(to_ns, end_ns) - max(at_ns, start_ns)) for at_ns, to_ns in work) / (end_ns - start_ns)
            for work in self.work
        ]
