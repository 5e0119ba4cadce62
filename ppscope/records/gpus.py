"""What NVML says of the GPUs."""

from __future__ import annotations

from ppscope.records.base import Record


class GpuDevice(Record, frozen=True, tag="gpu"):
    """What does not change about a GPU, by NVML. Emulated GPUs are marked and never mixed with real ones."""

    index: int
    uuid: str
    name: str
    power_limit_w: float | None = None
    memory_total_bytes: int | None = None
    pci_bus_id: str | None = None
    pcie_gen_max: int | None = None
    pcie_width_max: int | None = None
    sm_clock_max_mhz: int | None = None
    mig: bool | None = None
    numa_node: int | None = None
    driver_version: str | None = None
    emulated: bool = False
    p2p: tuple[tuple[int, str], ...] = ()
    """(other index, link) for each other GPU: `NVLINK`, `PIX`, `PHB`, `SYS` … or `NS` where NVML does not say."""


class GpuSample(Record, frozen=True, tag="gpu_sample"):
    """One reading of one GPU by NVML; each field is None where NVML gave N/A, no permission or an error."""

    index: int
    at_ns: int
    power_w: float | None = None
    power_limit_w: float | None = None
    util_percent: int | None = None
    memory_util_percent: int | None = None
    memory_used_bytes: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    pcie_tx_kb_s: int | None = None
    pcie_rx_kb_s: int | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    throttle_reasons: int | None = None
    """NVML's clocks-event (throttle) reasons bitmask."""
    pids: tuple[int, ...] | None = None
    """Pids of compute processes as NVML names them (the host's namespace, usually)."""
