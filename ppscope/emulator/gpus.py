"""The emulated GPUs: a file that says what NVML would, written anew ten times a second."""

from __future__ import annotations

import json
import math
import os
import time

from ppscope.emulator.board import Board
from ppscope.emulator.options import Options
from ppscope.emulator.scenarios import BUSY_POWER_W, IDLE_POWER_W, MAX_TOTAL_TOKENS, POWER_LIMIT_W

PERIOD_S = 0.1
MEMORY_TOTAL_BYTES = 191_503_138_816
SM_CLOCK_MHZ, SM_CLOCK_THROTTLED_MHZ, MEMORY_CLOCK_MHZ = 1965, 1290, 3996
SPINNING_POWER_W = 92.0
# NVML's clocks-event reasons: SW power cap 0x4, HW slowdown 0x8, SW thermal 0x20, HW thermal 0x40; 0x1 is gpu_idle.
THROTTLE_REASONS = 0x4 | 0x8 | 0x40
THROTTLE_PERIOD_S, THROTTLED_SHARE = 5.0, 0.6


class EmulatedGpus:
    """One GPU for each rank, `pids` in the order of ranks."""

    def __init__(self, options: Options, board: Board, pids: list[int]) -> None:
        self._options, self._board, self._pids = options, board, pids
        self._busy_ns = [0.0] * len(pids)
        self._at_ns = time.monotonic_ns()
        self._util = [0.0] * len(pids)
        self._power = [IDLE_POWER_W] * len(pids)

    def write(self) -> None:
        """Replace the file; readers see the old or the new one, never a half."""
        path = self._options.gpus_file
        temporary = f"{path}.new"
        with open(temporary, "w") as file:
            json.dump(self.sample(), file)
        os.replace(temporary, path)

    def sample(self) -> list[dict[str, object]]:
        """Return the readings of all GPUs since the last call."""
        now = time.monotonic_ns()
        elapsed = max(now - self._at_ns, 1)
        self._at_ns = now
        return [self._reading(index, now, elapsed) for index in range(len(self._pids))]

    def _reading(self, index: int, now_ns: int, elapsed_ns: int) -> dict[str, object]:
        scenario = self._options.scenario
        busy_ns = self._board.gpu_busy_ns(index, now_ns)
        busy = min(max((busy_ns - self._busy_ns[index]) / elapsed_ns, 0.0), 1.0)
        self._busy_ns[index] = busy_ns
        # NVML averages utilisation over up to a second, and power over about as long.
        self._util[index] += (busy - self._util[index]) * 0.2
        loaded = self._board.get(index, "forward_passes") > 0
        spinning = scenario.spinning and loaded
        power = IDLE_POWER_W + (index * 7 % 5) * 0.6 + busy * scenario.busy_intensity * (BUSY_POWER_W - IDLE_POWER_W)
        if spinning:
            power += SPINNING_POWER_W * (1.0 - busy)
        throttled = loaded and self._throttled(index, now_ns)
        if throttled:
            power = min(power, 0.62 * POWER_LIMIT_W)
        self._power[index] += (power - self._power[index]) * 0.25
        wobble = math.sin(now_ns / 1.7e9 + index) * 0.4
        util = 100.0 if spinning else 100.0 * self._util[index]
        tokens = self._board.get(index, "token_count")
        return {
            "index": index,
            "uuid": f"GPU-00000000-0000-4000-8000-{index:012d}",
            "name": "NVIDIA B200",
            "power_w": round(self._power[index] + wobble, 1),
            "power_limit_w": POWER_LIMIT_W,
            "util_percent": round(util),
            "memory_used_bytes": int(MEMORY_TOTAL_BYTES * (0.86 + 0.02 * tokens / MAX_TOTAL_TOKENS))
            if loaded
            else 1_200_000_000,
            "memory_total_bytes": MEMORY_TOTAL_BYTES,
            "sm_clock_mhz": SM_CLOCK_THROTTLED_MHZ if throttled else SM_CLOCK_MHZ if loaded else 120,
            "mem_clock_mhz": MEMORY_CLOCK_MHZ,
            "temperature_c": round(33 + self._power[index] / 14 + (24 if throttled else 0)),
            "pcie_tx_kb_s": round(900 + 60_000 * self._util[index]),
            "pcie_rx_kb_s": round(1_100 + 48_000 * self._util[index]),
            "throttle_reasons": THROTTLE_REASONS if throttled else 0 if loaded else 1,
            "pids": [self._pids[index]],
        }

    def _throttled(self, index: int, now_ns: int) -> bool:
        which = self._options.scenario.throttled_gpu
        if which is None or index != min(which, self._options.pp_size - 1) * self._options.tp_size:
            return False
        return (now_ns / 1e9) % THROTTLE_PERIOD_S < THROTTLE_PERIOD_S * THROTTLED_SHARE
