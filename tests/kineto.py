"""Kineto-shaped traces with known truth: single events, every layout, and whole pipelines."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = dict[str, Any]
BASE_NS = 1_790_857_026_000_000_000
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
    """A decode run over several stages, simulated: what is written, and what is true about it.

    Each micro-batch runs on stage 0, 1, … in turn; `slots` of them are in flight. A stage that waits runs a SendRecv kernel. Leaks are
    (stage, step, kernel name) of extra eager kernels beside the replay. `skew_ns` shifts a stage's clock. `compute_ns` is
    the time of a stage's graph per step.
    """

    compute_ns: list[int]
    steps: int = 10
    slots: int = 1
    leaks: list[tuple[int, int, str]] = field(default_factory=list)
    missed: list[tuple[int, int]] = field(default_factory=list)
    skew_ns: list[int] | None = None
    base_ns: list[int] | None = None
    hosts: list[str] | None = None
    kernels: int = 40
    batch_size: int = 8
    baseline: tuple[str, ...] = ("fill_kernel", "index_kernel", "argmax_kernel")
    mode: str = "DECODE"
    traces: list[Trace] = field(default_factory=list)
    work: list[list[tuple[int, int]]] = field(default_factory=list)
    leak_ns: list[tuple[int, int, int]] = field(default_factory=list)
    """(stage, step, launch time on the true clock) of every planted leak."""

    LEAD_NS = 100_000
    SMALL_NS = 3_000
    SETTLE_NS = 20_000

    def build(self) -> Pipeline:
        stages = len(self.compute_ns)
        bases = self.base_ns or [BASE_NS] * stages
        skews = self.skew_ns or [0] * stages
        origin = 5_000_000_000_000
        self.work = [[] for _ in range(stages)]
        for stage in range(stages):
            host = self.hosts[stage] if self.hosts else "node0"
            # The file's clock is its own base plus ts; a skewed host adds its error to both alike.
            trace = Trace(stage, stages, bases[stage], host, f"sglang::scheduler_PP{stage}", 100 + stage, stage)
            self.traces.append(trace)
        free_ns = [origin] * stages
        finished: list[int] = []
        for step in range(self.steps):
            ready_ns = origin if step < self.slots else finished[step - self.slots]
            for stage in range(stages):
                shift_ns = BASE_NS - bases[stage] + skews[stage]
                ready_ns = self._step(stage, step, free_ns, ready_ns, shift_ns)
            finished.append(ready_ns)
        return self

    def _step(self, stage: int, step: int, free_ns: list[int], ready_ns: int, shift_ns: int) -> int:
        trace = self.traces[stage]
        launch_ns = free_ns[stage] + self.SETTLE_NS
        start_ns = max(ready_ns, launch_ns) + self.LEAD_NS
        # The launches of a step come before its work: the host runs ahead of the device.
        cursor_ns = start_ns
        span_start_ns = launch_ns + 1000
        at_ns = span_start_ns + 500
        begin_ns = cursor_ns

        def eager(name: str) -> None:
            nonlocal cursor_ns, at_ns
            trace.eager(name, at_ns + shift_ns, cursor_ns + shift_ns, self.SMALL_NS)
            cursor_ns += self.SMALL_NS
            at_ns += 3_000

        if stage > 0:
            wait_ns = launch_ns + 400
            trace.eager(
                "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage)",
                launch_ns + 100 + shift_ns,
                wait_ns + shift_ns,
                start_ns - wait_ns,
                20,
            )
        eager(self.baseline[0])
        planted = [name for where, when, name in self.leaks if (where, when) == (stage, step)]
        for name in planted[::2]:
            self.leak_ns.append((stage, step, at_ns))
            eager(name)
        each_ns = self.compute_ns[stage] // self.kernels
        names = [f"gemm_kernel_{index % 4}" for index in range(self.kernels)]
        if (stage, step) in self.missed:
            for name in names:
                trace.eager(name, at_ns + shift_ns, cursor_ns + shift_ns, each_ns)
                cursor_ns += each_ns
                at_ns += 3_000
        else:
            trace.replay(
                [(name, cursor_ns + index * each_ns + shift_ns, each_ns) for index, name in enumerate(names)],
                at_ns + shift_ns,
            )
            cursor_ns += each_ns * self.kernels
            at_ns += 6_000
        for name in self.baseline[1:]:
            eager(name)
        for name in planted[1::2]:
            self.leak_ns.append((stage, step, at_ns))
            eager(name)
        size = f"bs={self.batch_size}" + (" toks=64" if self.mode == "EXTEND" else "")
        trace.span(f"step[{self.mode} {size}]", span_start_ns + shift_ns, at_ns + 1000 - span_start_ns)
        self.work[stage].append((begin_ns, cursor_ns))
        free_ns[stage] = cursor_ns
        return cursor_ns

    def write(self, folder: Path, profile_id: str = "1795989460.25", suffix: str = ".trace.json.gz") -> list[Path]:
        return [
            trace.write(folder / f"{profile_id}-TP-0-PP-{stage}{suffix}") for stage, trace in enumerate(self.traces)
        ]

    def window_ns(self) -> tuple[int, int]:
        """The common window on the true clock of `base_ns + ts`: from the last first event to the first last one."""
        starts, ends = [], []
        for trace in self.traces:
            starts.append(min(round(event["ts"] * 1000) + trace.base_ns for event in trace.events))
            ends.append(max(round((event["ts"] + event["dur"]) * 1000) + trace.base_ns for event in trace.events))
        return max(starts), min(ends)

    def busy_ns(self) -> list[int]:
        """Each stage's busy time inside the common window, skew not corrected."""
        start_ns, end_ns = self.window_ns()
        skews = self.skew_ns or [0] * len(self.work)
        return [
            sum(max(0, min(to + BASE_NS + skew, end_ns) - max(at + BASE_NS + skew, start_ns)) for at, to in work)
            for work, skew in zip(self.work, skews, strict=True)
        ]
