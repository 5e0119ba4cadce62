"""Readings of all GPUs through NVML. Runs in the child process alone: any call here may never return.

A field is None where NVML gives an error; a call that is not supported is not made again. Slow or rarely changing fields
are read seldom and repeat their last reading for a few periods, never longer.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

import pynvml

from ppscope.records import GpuDevice, GpuSample
from ppscope.sources import gpu_errors
from ppscope.sources.gpu_errors import Trouble

SLOW_NS = 1_000_000_000
"""Temperature, limits and link: at most this often. PCIe throughput too, for NVML measures it over 20 ms inside the call."""
PIDS_NS = 2_000_000_000
DESCRIBE_NS = 10_000_000_000
RETRY_LOST_NS = 10_000_000_000
KEEP_NS = 10_000_000_000
_PATIENCE = 5
"""Readings in a row with errors before the status says so; a single one is common under load."""
_PID_MAX = 4_194_304
"""Kernel's PID_MAX_LIMIT: a larger pid means the driver filled another struct (nvitop#75)."""

_NOT_AVAILABLE = frozenset({0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF})
"""NVML_VALUE_NOT_AVAILABLE is -1 in an unsigned field."""

_LINKS = {0: "INTERNAL", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""NVML_TOPOLOGY_* in the words of `nvidia-smi topo -m`."""


class Unavailable(Exception):
    """NVML gives nothing at all; `trouble` says why, `final` whether that stays so."""

    def __init__(self, trouble: Trouble, *, final: bool = True) -> None:
        super().__init__(trouble.message)
        self.trouble = trouble
        self.final = final


class _Lost(Exception):
    """One GPU does not answer any more."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def _unavailable(error: Any) -> Unavailable:
    code = int(error.value)
    return Unavailable(gpu_errors.init_trouble(code, str(error)), final=code in gpu_errors.FINAL)


@dataclass
class _Gpu:
    """One GPU: its handle, what it refused, and the last readings of its slow fields."""

    index: int
    handle: Any = None
    device: GpuDevice | None = None
    described_ns: int = 0
    refused: set[tuple[str | int, ...]] = field(default_factory=set)
    held: dict[str, tuple[int, Any]] = field(default_factory=dict)
    trouble: Trouble | None = None
    tried_ns: int = 0
    said_ns: int = 0
    error: str | None = None
    errors_in_row: int = 0
    lacks: tuple[str, ...] = ()
    p2p: tuple[tuple[int, str], ...] | None = None

    def number(self, name: str, *arguments: object) -> int | None:
        """The answer of a function that gives one number."""
        return _plain(self.ask(name, *arguments))

    def ask(self, name: str, *arguments: object) -> Any:
        """The answer of one NVML function for this GPU, or None; raises _Lost or Unavailable."""
        key: tuple[str | int, ...] = (name, *(argument for argument in arguments if isinstance(argument, int)))
        if key in self.refused:
            return None
        function = getattr(pynvml, name, None)
        if function is None:
            self.refused.add(key)
            return None
        try:
            return function(self.handle, *arguments)
        except pynvml.NVMLError as error:
            code = int(error.value)
            if code in gpu_errors.LOST:
                raise _Lost(code, str(error)) from None
            if code in gpu_errors.DRIVER:
                raise _unavailable(error) from None
            if code in gpu_errors.NEVER:
                self.refused.add(key)
            else:
                self.error = str(error)
        except UnicodeDecodeError:
            self.refused.add(key)
        return None

    def seldom(self, key: str, period_ns: int, now_ns: int, name: str, *arguments: object) -> Any:
        """Like `ask`, but at most once a period; in between the last reading."""
        held = self.held.get(key)
        if held is None or now_ns - held[0] >= period_ns:
            held = self.held[key] = (now_ns, self.ask(name, *arguments))
        return held[1]

    def last(self, key: str, now_ns: int) -> Any:
        """The last reading of a field that is read in rotation, None once it is ten seconds old."""
        held = self.held.get(key)
        return None if held is None or now_ns - held[0] > KEEP_NS else held[1]

    def open(self) -> None:
        """Get the handle; raises _Lost."""
        try:
            self.handle = pynvml.nvmlDeviceGetHandleByIndex(self.index)
        except pynvml.NVMLError as error:
            if int(error.value) in gpu_errors.DRIVER:
                raise _unavailable(error) from None
            raise _Lost(int(error.value), str(error)) from None

    def lose(self, lost: _Lost, now_ns: int) -> None:
        """Note that this GPU does not answer; it is tried again after ten seconds."""
        self.trouble = gpu_errors.lost_trouble(self.index, lost.code, str(lost))
        self.tried_ns = now_ns
        self.described_ns = 0
        self.held.clear()


class NvmlReader:
    """All GPUs of the node. `open` first; then `devices` and `sample` in turn, from one thread."""

    def __init__(self, sysfs: str = "/sys") -> None:
        self._gpus: list[_Gpu] = []
        self._driver: str | None = None
        self._turn = 0
        self._sysfs = sysfs

    def open(self) -> None:
        """Start NVML and count the GPUs; raises Unavailable."""
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            self._driver = pynvml.nvmlSystemGetDriverVersion()
        except pynvml.NVMLError as error:
            raise _unavailable(error) from None
        except (AttributeError, OSError, UnicodeDecodeError) as error:
            wrong = Trouble("dead", f"NVML does not start: {error}", "is libnvidia-ml.so.1 the driver's own?")
            raise Unavailable(wrong) from None
        if not count:
            raise Unavailable(gpu_errors.NO_GPUS)
        self._gpus = [_Gpu(index) for index in range(count)]

    def devices(self, now_ns: int) -> list[GpuDevice]:
        """Devices that are new or have changed since the last call; looks at most every ten seconds."""
        found = []
        for gpu in self._gpus:
            if gpu.trouble or (gpu.device and now_ns - gpu.described_ns < DESCRIBE_NS):
                continue
            gpu.described_ns = now_ns
            try:
                if gpu.handle is None:
                    gpu.open()
                device = self._describe(gpu)
            except _Lost as lost:
                gpu.lose(lost, now_ns)
                continue
            if device != gpu.device:
                gpu.device = device
                found.append(device)
        return found

    def sample(self, now_ns: int) -> list[GpuSample]:
        """One reading of each GPU; of a lost one, a reading of nothing once a second."""
        samples = []
        turn = self._turn
        self._turn = (turn + 1) % len(self._gpus)
        for gpu in self._gpus:
            if gpu.trouble and now_ns - gpu.tried_ns < RETRY_LOST_NS:
                if gpu.device and now_ns - gpu.said_ns >= SLOW_NS:
                    gpu.said_ns = now_ns
                    samples.append(GpuSample(gpu.index, now_ns))
                continue
            try:
                if gpu.handle is None or gpu.trouble:
                    gpu.open()
                if gpu.index == turn:
                    gpu.seldom("tx", SLOW_NS, now_ns, "nvmlDeviceGetPcieThroughput", pynvml.NVML_PCIE_UTIL_TX_BYTES)
                    gpu.seldom("rx", SLOW_NS, now_ns, "nvmlDeviceGetPcieThroughput", pynvml.NVML_PCIE_UTIL_RX_BYTES)
                samples.append(_read(gpu))
                gpu.trouble = None
            except _Lost as lost:
                gpu.lose(lost, now_ns)
        return samples

    def state(self) -> Trouble:
        """How all of it is doing, for the source's status."""
        count = len(self._gpus)
        lost = [gpu.trouble for gpu in self._gpus if gpu.trouble]
        if lost:
            more = f" (and {len(lost) - 1} more in trouble)" if len(lost) > 1 else ""
            state = "dead" if len(lost) == count else "degraded"
            return lost[0]._replace(state=state, message=lost[0].message + more)
        failing = [gpu for gpu in self._gpus if gpu.errors_in_row >= _PATIENCE]
        if failing:
            said = f"NVML errors on GPU {failing[0].index}: {failing[0].error}"
            return Trouble("degraded", said, gpu_errors.KERNEL_LOG)
        lacking = [gpu for gpu in self._gpus if gpu.lacks]
        if lacking:
            same = [gpu for gpu in lacking if gpu.lacks == lacking[0].lacks]
            mig = " (MIG mode)" if all(gpu.device and gpu.device.mig for gpu in same) else ""
            said = f"NVML gives no {', '.join(same[0].lacks)} for GPU {', '.join(str(gpu.index) for gpu in same)}{mig}"
            return Trouble("degraded", said, "")
        return Trouble("ok", f"{count} GPU{'s' if count > 1 else ''}, driver {self._driver or '–'}", "")

    def _describe(self, gpu: _Gpu) -> GpuDevice:
        memory = gpu.ask("nvmlDeviceGetMemoryInfo")
        pci = gpu.ask("nvmlDeviceGetPciInfo")
        bus = None if pci is None else _text(pci.busId)
        mig = gpu.ask("nvmlDeviceGetMigMode")
        if gpu.p2p is None:
            gpu.p2p = self._links(gpu)
        return GpuDevice(
            index=gpu.index,
            uuid=gpu.ask("nvmlDeviceGetUUID") or f"unknown-{gpu.index}",
            name=gpu.ask("nvmlDeviceGetName") or "unknown GPU",
            power_limit_w=_watts(gpu.number("nvmlDeviceGetEnforcedPowerLimit")),
            memory_total_bytes=None if memory is None else _plain(memory.total),
            pci_bus_id=bus,
            pcie_gen_max=gpu.number("nvmlDeviceGetMaxPcieLinkGeneration"),
            pcie_width_max=gpu.number("nvmlDeviceGetMaxPcieLinkWidth"),
            sm_clock_max_mhz=gpu.number("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM),
            mig=None if mig is None or mig[0] not in (0, 1) else bool(mig[0]),
            numa_node=numa_node(bus, self._sysfs),
            driver_version=self._driver,
            p2p=gpu.p2p,
        )

    def _links(self, gpu: _Gpu) -> tuple[tuple[int, str], ...]:
        return tuple((other.index, _link(gpu, other)) for other in self._gpus if other is not gpu)


def _link(gpu: _Gpu, other: _Gpu) -> str:
    try:
        if other.handle is None:
            other.open()
        peer = gpu.ask("nvmlDeviceGetP2PStatus", other.handle, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
        if peer == pynvml.NVML_P2P_STATUS_OK:
            return "NVLINK"
        return _LINKS.get(gpu.ask("nvmlDeviceGetTopologyCommonAncestor", other.handle), "NS")
    except _Lost:
        # Which of the two is lost is not said here; the reading of each tells.
        return "NS"


def _read(gpu: _Gpu) -> GpuSample:
    now_ns = time.monotonic_ns()
    gpu.error = None
    util = gpu.ask("nvmlDeviceGetUtilizationRates")
    memory = gpu.ask("nvmlDeviceGetMemoryInfo")
    throttle = gpu.number("nvmlDeviceGetCurrentClocksEventReasons")
    if throttle is None:
        throttle = gpu.number("nvmlDeviceGetCurrentClocksThrottleReasons")
    temperature = ("temperature", SLOW_NS, now_ns, "nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)
    sample = GpuSample(
        index=gpu.index,
        at_ns=now_ns,
        power_w=_watts(gpu.number("nvmlDeviceGetPowerUsage")),
        power_limit_w=_watts(_plain(gpu.seldom("limit", SLOW_NS, now_ns, "nvmlDeviceGetEnforcedPowerLimit"))),
        util_percent=None if util is None else _plain(util.gpu),
        memory_util_percent=None if util is None else _plain(util.memory),
        memory_used_bytes=None if memory is None else _plain(memory.used),
        sm_clock_mhz=gpu.number("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
        memory_clock_mhz=gpu.number("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM),
        temperature_c=_plain(gpu.seldom(*temperature)),
        pcie_tx_kb_s=_plain(gpu.last("tx", now_ns)),
        pcie_rx_kb_s=_plain(gpu.last("rx", now_ns)),
        pcie_gen=_plain(gpu.seldom("gen", SLOW_NS, now_ns, "nvmlDeviceGetCurrPcieLinkGeneration")),
        pcie_width=_plain(gpu.seldom("width", SLOW_NS, now_ns, "nvmlDeviceGetCurrPcieLinkWidth")),
        throttle_reasons=throttle,
        pids=_pids(gpu.seldom("pids", PIDS_NS, now_ns, "nvmlDeviceGetComputeRunningProcesses")),
    )
    gpu.errors_in_row = gpu.errors_in_row + 1 if gpu.error else 0
    readings = {"power": sample.power_w, "utilisation": sample.util_percent, "memory": sample.memory_used_bytes}
    gpu.lacks = tuple(name for name, reading in readings.items() if reading is None)
    return sample


def _plain(value: Any) -> int | None:
    return None if value is None or value in _NOT_AVAILABLE else int(value)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _text(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else raw.decode("ascii", "replace")


def _pids(processes: Any) -> tuple[int, ...] | None:
    if processes is None:
        return None
    pids = tuple(sorted({int(process.pid) for process in processes}))
    return pids if all(0 < pid <= _PID_MAX for pid in pids) else None


def numa_node(bus_id: str | None, sysfs: str = "/sys") -> int | None:
    """NUMA node of the PCI device, from sysfs; None when unknown or when the node has only one.

    NVML's own nvmlDeviceGetNumaNodeId answers only where a GPU is itself a NUMA node.
    """
    if not bus_id:
        return None
    domain, _, rest = bus_id.lower().partition(":")
    try:
        # NVML writes the PCI domain with eight digits, sysfs with four or more.
        path = os.path.join(sysfs, "bus/pci/devices", f"{int(domain, 16):04x}:{rest}", "numa_node")
        with open(path, encoding="ascii") as file:
            node = int(file.read(16))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
