"""The GPU of one stage as a clock: work is queued on one stream and is finished when its time has come. Times are CLOCK_MONOTONIC."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ppscope.emulator.board import Board
from ppscope.emulator.scenarios import Scenario

GRAPH_OVERHEAD_NS = 40_000
HOP_NS = 60_000
STRAY_NS = 10_000


@dataclass(frozen=True)
class GpuWork:
    """One thing on the GPU and the host call that launched it, in ns.

    `kind` is `graph`, `eager`, `stray` (a kernel beside a graph), `recv`, `recv_output` or `send`.
    """

    kind: str
    host_start_ns: int
    host_end_ns: int
    start_ns: int
    end_ns: int
    peer: int | None = None


class GpuTimeline:
    """Queue of one GPU. With `trace` set, everything queued is appended there."""

    def __init__(self, scenario: Scenario, pp_rank: int, pp_size: int, board: Board, row: int) -> None:
        self.gpu_step_ns = int(scenario.gpu_ms * 1e6 / pp_size * scenario.stage_factor(pp_rank, pp_size))
        self._hop_ns = HOP_NS + int(scenario.transfer_ms * 1e6 / pp_size)
        self._stray_every, self._replays = scenario.stray_every, 0
        self._late_sync = scenario.late_sync and pp_rank == pp_size - 1
        self.trace: list[GpuWork] | None = None
        self.free_ns = time.monotonic_ns()
        self._input_ready_ns = 0
        self._received_ns = 0
        self._sent_ns = 0
        self._spinning = scenario.spinning
        self._board, self._row = board, row
        self.duty = scenario.gpu_duty

    def receive(self, ready_ns: int, peer: int) -> int:
        """Queue a receive whose data the sender's GPU has at `ready_ns`; return when it is here."""
        now = time.monotonic_ns()
        end = max(ready_ns, now) + self._hop_ns
        start = max(min(self.free_ns, now) if self._spinning else max(now, self.free_ns), self._received_ns)
        self._received_ns = end
        if end > start:
            self._record(GpuWork("recv", now, now, start, end, peer))
        self._input_ready_ns = end
        return end

    def receive_output(self, ready_ns: int, peer: int) -> int:
        """Queue a receive on the copy stream, which computing need not wait for; return when the data is on the host."""
        now = time.monotonic_ns()
        end = max(ready_ns, now) + self._hop_ns
        if self._late_sync:
            end = max(end, self.free_ns)
        self._record(GpuWork("recv_output", now, now, now, end, peer))
        return end

    def send(self, ready_ns: int, peer: int) -> None:
        """Note a send in the trace; it takes no time of the stream."""
        now = time.monotonic_ns()
        start = max(now, ready_ns, self._sent_ns)
        self._sent_ns = start + self._hop_ns
        self._record(GpuWork("send", now, now, start, self._sent_ns, peer))

    def compute(self, *, replayed: bool, host_start_ns: int, host_end_ns: int) -> int:
        """Queue one forward pass launched in that host window; return when the GPU will have finished it."""
        step_ns = self.gpu_step_ns
        first_launch = host_end_ns if replayed else host_start_ns + GRAPH_OVERHEAD_NS
        start = max(first_launch, self.free_ns, self._input_ready_ns)
        end = start + step_ns if replayed else max(start + step_ns, host_end_ns + step_ns // 32)
        self._record(GpuWork("graph" if replayed else "eager", host_start_ns, host_end_ns, start, end))
        self._replays += replayed
        if replayed and self._stray_every and self._replays % self._stray_every == 0:
            self._record(GpuWork("stray", host_start_ns, host_start_ns, end, end + STRAY_NS))
            end += STRAY_NS
        board, row = self._board, self._row
        before = board.get(row, "gpu_span_end_ns") - board.get(row, "gpu_span_start_ns")
        board.add(row, "gpu_busy_ns", before * board.get(row, "gpu_duty"))
        board.set(row, "gpu_span_start_ns", start)
        board.set(row, "gpu_span_end_ns", end)
        board.set(row, "gpu_duty", self.duty)
        self.free_ns = end
        return end

    def _record(self, work: GpuWork) -> None:
        if self.trace is not None:
            self.trace.append(work)
