"""Trace files of the shape Kineto writes on CUDA: host spans, launches, kernels and the correlation between them."""

from __future__ import annotations

import gzip
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppscope.emulator.gpu_timeline import GpuWork
from ppscope.emulator.stacks import ATTENTION_KERNELS, Stacks

QUARTER_YEAR_S = 7_889_238
KERNELS_PER_LAYER = 18
COMPUTE_STREAM = 7
PEER_STREAMS = {"recv": 23, "send": 27, "recv_output": 31}
LAYER_KERNELS = (
    "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, unsigned int)",
    "nvjet_sm100_tst_64x8_64x16_4x1_v_bz_TNT",
    "void flash::mla_decode_kernel<576, 512, 64>(Flash_fwd_mla_params)",
    "moe_fused_gate_kernel",
    "fused_moe_kernel",
    "void act_and_mul_kernel<__nv_bfloat16, silu>(__nv_bfloat16*, __nv_bfloat16 const*, int)",
)
KERNEL_WEIGHTS = (0.35, 1.1, 1.2, 0.25, 2.4, 0.7)
"""How long each of them lasts beside the mean, so that the heaviest is the experts' as in a real trace of such a model."""
STRAY_KERNEL = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>(int, at::native::direct_copy_kernel_cuda)"
SEND_RECV_KERNEL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"

Event = dict[str, Any]


@dataclass(frozen=True)
class TraceRank:
    """Whose trace it is. `duty` is the share of an eager step's GPU span in which kernels run."""

    pid: int
    title: str
    rank: int
    world_size: int
    device: int
    layers: int
    duty: float
    stacks: Stacks | None = None
    """Frames to write with the launches; None where the profile was asked for without stacks."""


class _Clock:
    """Monotonic ns to the file's microseconds; the base is the start of the quarter-year, as Kineto's is."""

    def __init__(self) -> None:
        offset = time.time_ns() - time.monotonic_ns()
        self.base_ns = time.time_ns() // 1_000_000_000 // QUARTER_YEAR_S * QUARTER_YEAR_S * 1_000_000_000
        self._shift = offset - self.base_ns

    def us(self, monotonic_ns: float) -> float:
        return round((monotonic_ns + self._shift) / 1e3, 3)


class _Events:
    def __init__(self, rank: TraceRank, clock: _Clock) -> None:
        self._rank, self._clock = rank, clock
        self._correlation = 100

    def span(self, name: str, start_ns: int, end_ns: int) -> Event:
        return self._complete("user_annotation", name, self._rank.pid, start_ns, end_ns, {"External id": 0})

    def metadata(self, start_ns: int) -> Iterator[Event]:
        pid, title, device = self._rank.pid, self._rank.title, self._rank.device
        for where, name, label in ((pid, title, "CPU"), (device, title, f"GPU {device}")):
            for kind, args in (("process_name", {"name": name}), ("process_labels", {"labels": label})):
                yield {"ph": "M", "name": kind, "ts": self._clock.us(start_ns), "pid": where, "tid": 0, "args": args}
        thread = {"name": f"thread {pid} ({title[:15]})"}
        yield {"ph": "M", "name": "thread_name", "ts": self._clock.us(start_ns), "pid": pid, "tid": pid, "args": thread}

    def work(self, work: GpuWork) -> Iterator[Event]:
        if work.kind == "graph":
            return self._graph(work)
        if work.kind == "eager":
            return self._eager(work)
        if work.kind == "stray":
            return self._stray(work)
        return self._send_recv(work)

    def frames(self, work: GpuWork, stacks: Stacks) -> Iterator[Event]:
        """The Python functions of a step around its launches."""
        start, end = work.host_start_ns, work.host_end_ns
        around = stacks.step + {"graph": stacks.replay, "eager": stacks.eager}.get(work.kind, ())
        if work.kind not in ("graph", "eager"):
            return
        for name in around:
            yield self._frame(name, start, end)
        if work.kind == "eager":
            each = (end - start) / self._rank.layers
            for layer in range(self._rank.layers):
                at = start + layer * each
                attended = at + each * (ATTENTION_KERNELS - 0.5) / KERNELS_PER_LAYER
                for names, first, last in (
                    (stacks.layer, at, at + each),
                    (stacks.attention, at, attended),
                    (stacks.experts, attended, at + each),
                ):
                    for name in names:
                        yield self._frame(name, first, last - 1)

    def _frame(self, name: str, start_ns: float, end_ns: float) -> Event:
        return self._complete("python_function", name, self._rank.pid, start_ns, end_ns, {"Python id": 0})

    def _graph(self, work: GpuWork) -> Iterator[Event]:
        correlation = self._next()
        yield self._launch("cudaGraphLaunch", correlation, work.host_start_ns, work.host_end_ns)
        count = self._rank.layers * KERNELS_PER_LAYER
        each = (work.end_ns - work.start_ns) / count
        for index in range(count):
            layer, kind = divmod(index, len(LAYER_KERNELS))
            start = work.start_ns + (layer * len(LAYER_KERNELS) + sum(KERNEL_WEIGHTS[:kind])) * each
            lasted = each * KERNEL_WEIGHTS[kind] * 0.97
            yield self._kernel(index, correlation, start, start + lasted, graph_node=index + 1)

    def _eager(self, work: GpuWork) -> Iterator[Event]:
        count = self._rank.layers * KERNELS_PER_LAYER
        host_each = (work.host_end_ns - work.host_start_ns) / count
        gpu_each = (work.end_ns - work.start_ns) / count
        # A kernel starts no earlier than its launch and ends before the next: on a busy GPU there is no room for unequal ones.
        unequal = self._rank.duty * max(KERNEL_WEIGHTS) < 1
        for index in range(count):
            correlation = self._next()
            launched = work.host_start_ns + index * host_each
            yield self._launch("cudaLaunchKernel", correlation, launched, launched + min(6_000.0, host_each))
            start = work.start_ns + index * gpu_each
            weight = KERNEL_WEIGHTS[index % len(KERNEL_WEIGHTS)] if unequal else 1.0
            yield self._kernel(index, correlation, start, start + gpu_each * self._rank.duty * weight, graph_node=0)

    def _stray(self, work: GpuWork) -> Iterator[Event]:
        correlation = self._next()
        yield self._launch("cudaLaunchKernel", correlation, work.host_start_ns, work.host_start_ns + 3_000)
        yield self._gpu_event(
            STRAY_KERNEL, COMPUTE_STREAM, correlation, work.start_ns, work.end_ns, {"graph node id": 0}
        )

    def _send_recv(self, work: GpuWork) -> Iterator[Event]:
        correlation = self._next()
        stream = PEER_STREAMS[work.kind]
        launched = min(work.host_start_ns, work.start_ns - 5_000)
        yield self._launch("cudaLaunchKernelExC", correlation, launched, launched + 4_000)
        args = {"Collective name": "send" if work.kind == "send" else "recv", "Group size": 2, "dtype": "BFloat16"}
        yield self._gpu_event(SEND_RECV_KERNEL, stream, correlation, work.start_ns, work.end_ns, args)

    def _next(self) -> int:
        self._correlation += 1
        return self._correlation

    def _launch(self, name: str, correlation: int, start_ns: float, end_ns: float) -> Event:
        args = {"cbid": 311 if name == "cudaGraphLaunch" else 211, "correlation": correlation}
        return self._complete("cuda_runtime", name, self._rank.pid, start_ns, end_ns, args)

    def _kernel(self, index: int, correlation: int, start_ns: float, end_ns: float, graph_node: int) -> Event:
        name = LAYER_KERNELS[index % len(LAYER_KERNELS)]
        extra = {"graph node id": graph_node, "grid": [148, 1, 1], "block": [256, 1, 1]}
        return self._gpu_event(name, COMPUTE_STREAM, correlation, start_ns, end_ns, extra)

    def _gpu_event(
        self, name: str, stream: int, correlation: int, start_ns: float, end_ns: float, extra: Event
    ) -> Event:
        device = self._rank.device
        args = {"device": device, "context": 1, "stream": stream, "correlation": correlation, **extra}
        return self._complete("kernel", name, device, start_ns, end_ns, args, tid=stream)

    def _complete(
        self, category: str, name: str, pid: int, start_ns: float, end_ns: float, args: Event, tid: int | None = None
    ) -> Event:
        return {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": pid,
            "tid": pid if tid is None else tid,
            "ts": self._clock.us(start_ns),
            "dur": round((end_ns - start_ns) / 1e3, 3),
            "args": args,
        }


def write_trace(
    path: Path, rank: TraceRank, spans: list[tuple[str, int, int]], work: list[GpuWork], start_ns: int, end_ns: int
) -> None:
    """Write one rank's file, growing in place as the real one does: a reader has to wait for the end of the gzip stream."""
    clock = _Clock()
    events = _Events(rank, clock)
    header = {
        "schemaVersion": 1,
        "deviceProperties": [
            {"id": rank.device, "name": "NVIDIA B200", "computeMajor": 10, "computeMinor": 0, "numSms": 148}
        ],
        "cupti_version": 28,
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "distributedInfo": {"backend": "nccl", "rank": rank.rank, "world_size": rank.world_size},
        "record_shapes": 0,
        "with_stack": int(rank.stacks is not None),
        "trace_id": os.urandom(16).hex().upper(),
        "host_name": socket.gethostname(),
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": clock.base_ns,
    }

    def all_events() -> Iterator[Event]:
        yield from events.metadata(start_ns)
        for name, span_start, span_end in spans:
            yield events.span(name, span_start, span_end)
        for item in work:
            if rank.stacks is not None:
                yield from events.frames(item, rank.stacks)
            yield from events.work(item)

    with gzip.open(path, "wt", compresslevel=4, encoding="utf-8") as file:
        file.write(json.dumps(header)[:-1] + ', "traceEvents": [\n')
        separator = ""
        for event in all_events():
            file.write(separator + json.dumps(event))
            separator = ",\n"
        window = {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": clock.us(end_ns)}
        file.write(separator + json.dumps(window) + f'\n], "traceName": {json.dumps(str(path))}}}\n')
