"""Log lines and counters of one rank, in the words of SGLang 0.5.23."""

# ruff: noqa: TID252 - these modules run under SGLang's own package names.
from __future__ import annotations

import time

from ppscope.emulator.board import Board
from ppscope.emulator.log import write_log
from ppscope.emulator.scenarios import MAX_TOTAL_TOKENS

from ..schedule_batch import Req, ScheduleBatch

FIRST_LOG_AFTER = 4


class MetricsReporter:
    """Reports of one rank; only tensor-parallel rank 0 writes log lines."""

    def __init__(self, board: Board, row: int, prefix: str, *, logs: bool, interval: int, device_timer: bool) -> None:
        self._board, self._row, self._prefix = board, row, prefix
        self._logs, self._interval, self._device_timer = logs, interval, device_timer
        self._decode_passes = 0
        self._window_start_ns = time.monotonic_ns()
        self._window_tokens = 0
        self._window_busy_ns = 0.0

    def log_prefill_stats(self, batch: ScheduleBatch, running: int, token_count: int) -> None:
        """Write the line of a prefill and count it."""
        self._board.add(self._row, "prefill_eager", 1)
        new_tokens = sum(req.prompt_tokens for req in batch.reqs)
        self._line(
            f"Prefill batch, #new-seq: {batch.batch_size}, #new-token: {new_tokens}, #cached-token: 0, "
            f"token usage: {token_count / MAX_TOTAL_TOKENS:.2f}, #running-req: {running}, #queue-req: 0, "
            f"#pending-token: 0, cuda graph: False, input throughput (token/s): {new_tokens * 4.2:.2f}"
        )

    def log_decode_stats(self, batch: ScheduleBatch, *, replayed: bool, token_count: int) -> None:
        """Count a decode step, and write a line every `--decode-log-interval` of them; the first one comes early."""
        self._board.add(self._row, "decode_replayed" if replayed else "decode_eager", 1)
        self._board.add(self._row, "decode_tokens", batch.batch_size)
        self._decode_passes += 1
        if self._decode_passes == 1:
            # The first window starts at the first step, not at the start of the process.
            self._window_start_ns, self._window_busy_ns = time.monotonic_ns(), self._board.gpu_busy_ns(self._row)
            return
        self._window_tokens += batch.batch_size
        early = self._decode_passes == FIRST_LOG_AFTER
        if not early and self._decode_passes % self._interval:
            return
        now = time.monotonic_ns()
        seconds = max((now - self._window_start_ns) / 1e9, 1e-6)
        throughput = self._window_tokens / seconds
        busy = self._board.gpu_busy_ns(self._row, now)
        occupancy = min(max((busy - self._window_busy_ns) / seconds / 1e7, 0.0), 100.0)
        self._window_start_ns, self._window_tokens, self._window_busy_ns = now, 0, busy
        self._board.set(self._row, "gen_throughput", throughput)
        # As in 0.5.23, the gauge is the size of the micro-batch that was logged, not the sum over the slots.
        self._board.set(self._row, "running", batch.batch_size)
        tail = ""
        if self._device_timer:
            self._board.set(self._row, "fwd_occupancy", occupancy)
            tail = f", fwd occupancy: {occupancy:.2f}%"
        self._line(
            f"Decode batch, #running-req: {batch.batch_size}, #token: {token_count}, "
            f"token usage: {token_count / MAX_TOTAL_TOKENS:.2f}, cuda graph: {replayed}, "
            f"gen throughput (token/s): {throughput:.2f}, #queue-req: 0{tail}"
        )

    def publish_load(self, running_slots: list[list[Req]], mb_id: int, queued: int) -> int:
        """Publish what /v1/loads would see at the next slot, and the tokens of all slots; return the tokens."""
        tokens = sum(req.prompt_tokens + req.output_tokens for slot in running_slots for req in slot)
        self._board.set(self._row, "running_at_next", len(running_slots[(mb_id + 1) % len(running_slots)]))
        self._board.set(self._row, "token_count", tokens)
        self._board.set(self._row, "queued", queued)
        self._board.set(self._row, "in_flight", queued + sum(len(slot) for slot in running_slots))
        return tokens

    def _line(self, text: str) -> None:
        if self._logs:
            write_log(text, self._prefix)
