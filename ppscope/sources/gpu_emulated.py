"""Emulated GPUs: readings from a JSON file that the emulated server rewrites, in the place of NVML.

The launcher's environment names the file in `PPSCOPE_EMULATED_GPUS`. It is a list of objects, one per GPU, keys as in
`EmulatedGpu`; a key that is absent or null is not known. The file belongs to somebody else: anything may stand in it.
"""

from __future__ import annotations

import os
import stat
import time
from typing import Annotated

import msgspec
from msgspec import Meta

from ppscope.records import GpuDevice, GpuSample, Server
from ppscope.target.installed import Root

VARIABLE = "PPSCOPE_EMULATED_GPUS"
MAX_BYTES = 1024 * 1024
MAX_GPUS = 1024

_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Watts = Annotated[float, Meta(ge=0, le=1e6)]
_Percent = Annotated[int, Meta(ge=0, le=100)]
_Text = Annotated[str, Meta(max_length=200)]


class EmulatedGpu(msgspec.Struct, frozen=True):
    """One GPU of the file; units are in the names, `throttle_reasons` is NVML's bitmask."""

    index: Annotated[int, Meta(ge=0, lt=MAX_GPUS)]
    uuid: _Text
    name: _Text = "emulated GPU"
    power_w: _Watts | None = None
    power_limit_w: _Watts | None = None
    util_percent: _Percent | None = None
    memory_util_percent: _Percent | None = None
    memory_used_bytes: _Count | None = None
    memory_total_bytes: _Count | None = None
    sm_clock_mhz: _Count | None = None
    sm_clock_max_mhz: _Count | None = None
    mem_clock_mhz: _Count | None = None
    temperature_c: Annotated[int, Meta(ge=-273, le=1000)] | None = None
    pcie_tx_kb_s: _Count | None = None
    pcie_rx_kb_s: _Count | None = None
    pcie_gen: _Count | None = None
    pcie_width: _Count | None = None
    numa_node: _Count | None = None
    throttle_reasons: _Count | None = None
    pids: Annotated[list[Annotated[int, Meta(gt=0, le=4194304)]], Meta(max_length=4096)] | None = None

    def device(self) -> GpuDevice:
        """What does not change about it, marked emulated."""
        return GpuDevice(
            index=self.index,
            uuid=self.uuid,
            name=self.name,
            power_limit_w=self.power_limit_w,
            memory_total_bytes=self.memory_total_bytes,
            pcie_gen_max=self.pcie_gen,
            pcie_width_max=self.pcie_width,
            sm_clock_max_mhz=self.sm_clock_max_mhz,
            numa_node=self.numa_node,
            emulated=True,
        )

    def sample(self, at_ns: int) -> GpuSample:
        """The reading."""
        return GpuSample(
            index=self.index,
            at_ns=at_ns,
            power_w=self.power_w,
            power_limit_w=self.power_limit_w,
            util_percent=self.util_percent,
            memory_util_percent=self.memory_util_percent,
            memory_used_bytes=self.memory_used_bytes,
            sm_clock_mhz=self.sm_clock_mhz,
            memory_clock_mhz=self.mem_clock_mhz,
            temperature_c=self.temperature_c,
            pcie_tx_kb_s=self.pcie_tx_kb_s,
            pcie_rx_kb_s=self.pcie_rx_kb_s,
            pcie_gen=self.pcie_gen,
            pcie_width=self.pcie_width,
            throttle_reasons=self.throttle_reasons,
            pids=None if self.pids is None else tuple(self.pids),
        )


_DECODER = msgspec.json.Decoder(Annotated[list[EmulatedGpu], Meta(max_length=MAX_GPUS)])


class UnreadableFile(ValueError):
    """The file cannot be used now; the text says why."""


def parse(data: bytes) -> list[EmulatedGpu]:
    """The GPUs of the file's content; raises UnreadableFile."""
    try:
        gpus = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableFile(f"not what is expected: {error}") from None
    if len({gpu.index for gpu in gpus}) != len(gpus):
        raise UnreadableFile("two GPUs have the same index")
    return gpus


def read(path: str) -> list[EmulatedGpu]:
    """The GPUs of the file; raises UnreadableFile. Never waits: a pipe or a device is refused."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        raise UnreadableFile(getattr(error, "strerror", None) or str(error)) from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise UnreadableFile("not a regular file")
        data = b""
        while len(data) <= MAX_BYTES and (piece := os.read(fd, MAX_BYTES + 1 - len(data))):
            data += piece
    except OSError as error:
        raise UnreadableFile(error.strerror or str(error)) from None
    finally:
        os.close(fd)
    if len(data) > MAX_BYTES:
        raise UnreadableFile(f"longer than {MAX_BYTES} bytes")
    return parse(data)


def find_path(server: Server, proc: str = "/proc") -> str | None:
    """The file that the environment of the server's processes names; None when none does or none may be read.

    In another mount namespace it is the file as that process sees it.
    """
    key = VARIABLE.encode() + b"="
    pids = [server.launcher_pid, *(rank.pid for rank in server.ranks), *(pid for pid, _ in server.others)]
    for pid in pids:
        try:
            with open(os.path.join(proc, str(pid), "environ"), "rb") as file:
                entries = file.read().split(b"\0")
        except OSError:
            continue
        for entry in entries:
            if entry.startswith(key) and (path := os.fsdecode(entry[len(key) :])).startswith("/"):
                return _as_seen_by(pid, path, proc)
    return None


def _as_seen_by(pid: int, path: str, proc: str) -> str:
    try:
        ours, theirs = (os.readlink(f"{proc}/{who}/ns/mnt") for who in ("self", pid))
    except OSError:
        return path
    return path if ours == theirs else Root(f"{proc}/{pid}/root").resolve(path)


class EmulatedReader:
    """Readings of the file, with each device told when it is new or changed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._devices: dict[int, GpuDevice] = {}

    def records(self) -> list[GpuDevice | GpuSample]:
        """One reading of every GPU; raises UnreadableFile."""
        found: list[GpuDevice | GpuSample] = []
        now_ns = time.monotonic_ns()
        for gpu in read(self.path):
            device = gpu.device()
            if self._devices.get(gpu.index) != device:
                self._devices[gpu.index] = device
                found.append(device)
            found.append(gpu.sample(now_ns))
        return found
