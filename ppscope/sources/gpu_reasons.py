"""Names of NVML's clocks-event (throttle) reason bits; no NVML needed to read them."""

from __future__ import annotations

GPU_IDLE = 0x1

THROTTLE_REASONS: tuple[tuple[int, str, str], ...] = (
    (GPU_IDLE, "gpu_idle", "nothing runs, clocks fall"),
    (0x2, "app_clocks", "clocks were set by a user or by the application-clocks setting"),
    (0x4, "sw_power_cap", "the power limit holds the clocks down"),
    (0x8, "hw_slowdown", "hardware halves the clocks: heat, a power brake, or too high a current"),
    (0x10, "sync_boost", "clocks follow the slowest GPU of a sync-boost group"),
    (0x20, "sw_thermal", "the driver lowers the clocks because of heat"),
    (0x40, "hw_thermal", "hardware lowers the clocks because of heat"),
    (0x80, "hw_power_brake", "an external power brake, such as the power supply's, lowers the clocks"),
    (0x100, "display_clocks", "clocks are set for a display"),
    (0x200, "board_limit", "a limit of the board holds the clocks down"),
    (0x400, "reliability", "the reliability voltage holds the clocks down"),
)
"""(bit, name, meaning) of `nvmlClocksEventReason*` and `nvmlClocksThrottleReason*` of nvidia-ml-py 13.615, lowest bit first."""

_NAMED = sum(bit for bit, _, _ in THROTTLE_REASONS)


def throttle_names(mask: int) -> tuple[str, ...]:
    """Names of the bits set, lowest first, `gpu_idle` included; bits unknown here become one `0x…` name."""
    names = [name for bit, name, _ in THROTTLE_REASONS if mask & bit]
    unknown = mask & ~_NAMED
    if unknown > 0:
        names.append(f"0x{unknown:x}")
    return tuple(names)


def throttled(mask: int) -> bool:
    """Whether any reason other than idleness holds the clocks down."""
    return mask > 0 and bool(mask & ~GPU_IDLE)
