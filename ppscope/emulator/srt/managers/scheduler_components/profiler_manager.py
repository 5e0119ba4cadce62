"""Start and stop of a profile on one rank, counted in forward passes of micro-batches."""

# ruff: noqa: TID252 - these modules run under SGLang's own package names.
from __future__ import annotations

import os
import time
from pathlib import Path

from ppscope.emulator.gpu_timeline import GpuTimeline, GpuWork
from ppscope.emulator.kineto import TraceRank, write_trace
from ppscope.emulator.log import write_log
from ppscope.emulator.stacks import Stacks

from ....torch.profiler import SPANS, set_recording
from ...model_executor.model_runner import stage_layers
from ..schedule_batch import ProfileReq


class ProfilerManager:
    """Profile of one rank. A second start while one runs is refused with a log line, as 0.5.15 and later do."""

    def __init__(
        self,
        gpu: GpuTimeline,
        pp_rank: int,
        pp_size: int,
        tp_rank: int,
        tp_size: int,
        gpu_id: int,
        prefix: str,
        stacks: Stacks | None = None,
    ) -> None:
        self._gpu, self._prefix, self._stacks = gpu, prefix, stacks
        self._pp_rank, self._pp_size = pp_rank, pp_size
        self._tp_rank, self._tp_size, self._gpu_id = tp_rank, tp_size, gpu_id
        self._request: ProfileReq | None = None
        self._start_ns = 0
        self._target_forward_ct: int | None = None

    def profile(self, recv_req: ProfileReq, forward_ct: int) -> None:
        """Obey a /start_profile or /stop_profile."""
        if recv_req.start:
            self._start_profile(recv_req, forward_ct)
        else:
            self._stop_profile()

    def profile_batch_predicate(self, forward_ct: int) -> None:
        """Stop at the top of the first forward pass after the last wanted one."""
        if self._target_forward_ct is not None and forward_ct >= self._target_forward_ct:
            self._stop_profile()

    def _start_profile(self, recv_req: ProfileReq, forward_ct: int) -> None:
        if self._request is not None:
            write_log("Profiling is already in progress. Call /stop_profile first.", self._prefix)
            return
        write_log(
            f"Profiling starts. Traces will be saved to: {recv_req.output_dir} (with profile id: {recv_req.profile_id})",
            self._prefix,
        )
        self._request = recv_req
        self._start_ns = time.monotonic_ns()
        # forward_ct is raised before the predicate looks at it, hence the one.
        self._target_forward_ct = None if recv_req.num_steps is None else forward_ct + recv_req.num_steps + 1
        self._gpu.trace = []
        set_recording(True)

    def _stop_profile(self) -> None:
        request, work = self._request, self._gpu.trace
        if request is None or work is None:
            return
        write_log("Stop profiling...", self._prefix)
        set_recording(False)
        self._gpu.trace, self._request, self._target_forward_ct = None, None, None
        self.export_chrome_trace(self._path(request), list(SPANS), work, self._stacks if request.with_stack else None)
        write_log(f"Profiling done. Traces are saved to: {request.output_dir}", self._prefix)

    def export_chrome_trace(
        self, path: Path, spans: list[tuple[str, int, int]], work: list[GpuWork], stacks: Stacks | None = None
    ) -> None:
        """Write the file; the scheduler stands still meanwhile."""
        path.parent.mkdir(parents=True, exist_ok=True)
        rank = TraceRank(
            pid=os.getpid(),
            title=f"sglang::scheduler_PP{self._pp_rank}" + (f"_TP{self._tp_rank}" if self._tp_size > 1 else ""),
            rank=self._pp_rank * self._tp_size + self._tp_rank,
            world_size=self._pp_size * self._tp_size,
            device=self._gpu_id,
            layers=stage_layers(self._pp_rank, self._pp_size),
            duty=self._gpu.duty,
            stacks=stacks,
        )
        write_trace(path, rank, spans, work, self._start_ns, time.monotonic_ns())

    def _path(self, request: ProfileReq) -> Path:
        prefix = f"{request.profile_prefix}-" if request.profile_prefix else ""
        part = f"-PP-{self._pp_rank}" if self._pp_size > 1 else ""
        return Path(request.output_dir) / f"{prefix}{request.profile_id}-TP-{self._tp_rank}{part}.trace.json.gz"
