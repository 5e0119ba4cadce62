"""The NVML reader, with the real nvidia-ml-py over a fake library in the real child process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pynvml
import pytest

from ppscope.collect.stream import encode
from ppscope.records import GpuDevice, GpuSample, SourceStatus
from ppscope.sources import gpu, gpu_errors, gpu_nvml
from ppscope.sources.gpu import GpuSource
from ppscope.sources.gpu_reasons import THROTTLE_REASONS, throttle_names, throttled
from tests.fake_nvml import fake_nvml_env
from tests.unit.gpu_host_tools import Gathered, alive, server_of
from tests.unit.tiny_http import eventually

Starter = Callable[..., tuple[GpuSource, Gathered]]


@pytest.fixture
def started() -> Iterator[Starter]:
    sources: list[GpuSource] = []

    def start(scenario: str, *, gpus: int = 2, hz: float = 50.0, **options: object) -> tuple[GpuSource, Gathered]:
        gathered = Gathered()
        environment = fake_nvml_env(scenario, gpus=gpus, **options)  # type: ignore[arg-type]
        source = GpuSource(gathered, hz=hz, environment=environment, backoff_s=0.01)
        sources.append(source)
        source.start(server_of())
        return source, gathered

    yield start
    for source in sources:
        source.stop()
        assert source.children() == ()


def readings(sample: GpuSample) -> dict[str, object]:
    values = msgspec.structs.asdict(sample)
    del values["index"], values["at_ns"]
    return values


def test_healthy_gpus_are_described_once_and_read_again_and_again(started: Starter) -> None:
    _, gathered = started("healthy", gpus=8, hz=20, pids="0:123 1:457 1:456")
    samples = gathered.wait(GpuSample, count=40)
    devices = gathered.of(GpuDevice)
    assert [device.index for device in devices] == list(range(8))
    assert devices[5] == GpuDevice(
        index=5,
        uuid="GPU-00000000-0000-0000-0000-000000000005",
        name="NVIDIA Fake B200",
        power_limit_w=600.0,
        memory_total_bytes=192 * 2**30,
        pci_bus_id="00000000:15:00.0",
        pcie_gen_max=5,
        pcie_width_max=16,
        sm_clock_max_mhz=1965,
        mig=False,
        driver_version="575.00.01",
        p2p=tuple((other, "NVLINK" if other > 3 else "SYS") for other in range(8) if other != 5),
    )
    assert readings(samples[1]) == {
        "power_w": 86.0,
        "power_limit_w": 600.0,
        "util_percent": 3,
        "memory_util_percent": 3,
        "memory_used_bytes": 20 * 2**30,
        "sm_clock_mhz": 345,
        "memory_clock_mhz": 2619,
        "temperature_c": 34,
        "pcie_tx_kb_s": None,
        "pcie_rx_kb_s": None,
        "pcie_gen": 5,
        "pcie_width": 16,
        "throttle_reasons": 1,
        "pids": (456, 457),
    }
    assert samples[0].pids == (123,)
    assert samples[2].pids == ()
    assert (
        gathered.wait(GpuSample, lambda sample: sample.index == 1 and sample.pcie_tx_kb_s == 1200)[0].pcie_rx_kb_s
        == 800
    )
    assert gathered.statuses() == [("ok", "8 GPUs, driver 575.00.01")]


@pytest.mark.parametrize(
    ("scenario", "state", "said"),
    [
        ("missing", "off", "libnvidia-ml.so.1 not found"),
        ("zero", "off", "finds no GPU"),
        ("no_permission", "dead", "no permission"),
    ],
)
def test_a_node_without_nvml_gives_one_clear_line_and_no_second_try(
    started: Starter, scenario: str, state: str, said: str
) -> None:
    source, gathered = started(scenario)
    status = gathered.status(state, said)
    assert status.remedy
    assert source._thread is not None
    source._thread.join(10)
    assert gathered.records == [status]


@pytest.mark.parametrize(
    ("scenario", "state", "said"),
    [
        ("not_loaded", "off", "driver is not loaded"),
        ("mismatch", "dead", "differ in version"),
        ("unknown_init", "dead", "NVML does not work: Unknown Error"),
        ("timeout_init", "dead", "NVML does not work: Timeout"),
    ],
)
def test_an_nvml_that_does_not_start_is_tried_anew_for_as_long_as_it_takes(
    started: Starter, scenario: str, state: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "RETRY_S", 0.05)
    log = tmp_path / "calls"
    source, gathered = started(scenario, log=log)
    assert source._environment is not None
    gathered.status(state, said)
    assert eventually(lambda: log.read_text().count("nvmlInit") >= gpu.MAX_RESTARTS + 3)
    assert len(gathered.records) == 1, "said once"
    source._environment["FAKE_NVML"] = "healthy"
    gathered.status("ok")
    gathered.wait(GpuSample)


def test_what_nvml_does_not_support_is_none_and_not_asked_again(started: Starter, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    _, gathered = started("na", log=log)
    for sample in gathered.wait(GpuSample, count=20):
        assert set(readings(sample).values()) == {None}
    gathered.status("degraded", "no power, utilisation, memory for GPU 0, 1")
    assert gathered.of(GpuDevice)[0].power_limit_w is None
    asked = Counter(log.read_text().splitlines())
    assert asked["nvmlDeviceGetPowerUsage 0"] == asked["nvmlDeviceGetUtilizationRates 1"] == 1
    # One question for the device and one for the samples at most; clocks are two questions.
    assert max(times for call, times in asked.items() if "Get" in call) <= 2


def test_a_mig_gpu_has_no_utilisation_and_the_others_do(started: Starter) -> None:
    _, gathered = started("mig")
    first, second = gathered.wait(GpuSample, count=2)
    assert (first.util_percent, first.memory_util_percent, first.power_w) == (None, None, 85.0)
    assert second.util_percent == 3
    assert [device.mig for device in gathered.of(GpuDevice)] == [True, False]
    gathered.status("degraded", "no utilisation for GPU 0 (MIG mode)")


def test_all_ones_is_nvmls_word_for_not_available(started: Starter) -> None:
    _, gathered = started("rubbish")
    for sample in gathered.wait(GpuSample, count=6):
        assert set(readings(sample).values()) == {None, ()}
    device = gathered.of(GpuDevice)[0]
    assert (device.name, device.mig, device.power_limit_w) == ("unknown GPU", None, None)


def test_pids_from_a_scrambled_struct_are_not_reported(started: Starter) -> None:
    _, gathered = started("scrambled", pids="0:123")
    first, second = gathered.wait(GpuSample, count=2)
    assert (first.pids, second.pids) == (None, ())


@pytest.mark.parametrize(("scenario", "said"), [("lost", "GPU 3 is lost"), ("unopened", "GPU 3 may not be opened")])
def test_one_bad_gpu_does_not_take_the_others_along(started: Starter, scenario: str, said: str) -> None:
    _, gathered = started(scenario, gpus=5)
    gathered.status("degraded", said)
    gathered.wait(GpuSample, count=20)
    assert {sample.index for sample in gathered.of(GpuSample)} == {0, 1, 2, 4}
    assert dict(gathered.of(GpuDevice)[0].p2p)[3] == "NS"


def test_a_gpu_lost_under_way_reads_as_nothing(started: Starter) -> None:
    _, gathered = started("lost_later", gpus=4)
    gathered.status("degraded", "GPU 3 is lost")
    unknown = gathered.wait(GpuSample, lambda sample: sample.index == 3 and sample.power_w is None)[0]
    assert set(readings(unknown).values()) == {None}
    assert any(sample.index == 3 and sample.power_w for sample in gathered.of(GpuSample))
    gathered.wait(GpuSample, lambda sample: sample.index == 0 and sample.at_ns > unknown.at_ns)


def test_errors_without_a_meaning_are_told_once_they_last(started: Starter) -> None:
    _, gathered = started("errors")
    assert gathered.status("degraded", "NVML errors on GPU 1: Unknown Error").remedy
    assert all((sample.power_w is None) == (sample.index == 1) for sample in gathered.of(GpuSample))


def test_a_call_that_never_returns_is_told_with_seconds_and_ends_with_stop(
    started: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "STALLED_S", 1.0)
    source, gathered = started("hang", after=60)
    stalled = gathered.status("stalled", "has not answered for 1 s")
    gathered.status("stalled", "has not answered for 2 s")
    assert stalled.remedy
    (child,) = source.children()
    source.stop()
    assert source._thread is not None
    assert not source._thread.is_alive()
    assert not alive(child)
    source.stop()


def test_a_driver_that_is_long_in_starting_is_told_apart(started: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "STALLED_S", 0.3)
    _, gathered = started("hang_init")
    gathered.status("stalled", "NVML has been starting")


def test_a_driver_that_answers_again_is_well_again(started: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "STALLED_S", 0.3)
    source, gathered = started("healthy")
    gathered.status("ok")
    (child,) = source.children()
    os.kill(child, signal.SIGSTOP)
    stalled = gathered.status("stalled")
    os.kill(child, signal.SIGCONT)
    gathered.wait(SourceStatus, lambda status: status.state == "ok" and status.at_ns > stalled.at_ns)
    assert source.children() == (child,)


def test_a_child_that_cannot_be_killed_is_left_behind(started: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    source, gathered = started("hang", after=60)
    gathered.wait(GpuSample)
    child = source._child
    assert child is not None
    with monkeypatch.context() as patched:
        patched.setattr(child, "kill", lambda: None)
        # A process in state D does not end when its pipe closes either.
        os.kill(child.pid, signal.SIGSTOP)
        source.stop()
    assert source._thread is not None
    assert not source._thread.is_alive()
    assert alive(child.pid)
    child.kill()
    child.wait()


def test_an_error_in_the_thread_becomes_a_status_and_leaves_no_child(
    started: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "FrameReader", lambda *_, **__: 1 / 0)
    _, gathered = started("healthy")
    gathered.status("dead", "ZeroDivisionError")


def test_a_reader_that_dies_is_started_again_a_few_times(started: Starter) -> None:
    source, gathered = started("crash", after=100)
    gathered.status("dead", "SIGSEGV; given up")
    assert source._thread is not None
    source._thread.join(10)
    told = [message for state, message in gathered.statuses() if state == "dead"]
    assert len(told) == gpu.MAX_RESTARTS + 1
    assert all("the NVML reader was killed by SIGSEGV" in message for message in told)


def test_a_driver_exchanged_under_way_is_tried_anew(started: Starter) -> None:
    _, gathered = started("mismatch_later", after=100)
    changed = gathered.status("dead", "differ in version")
    gathered.wait(GpuSample, lambda sample: sample.at_ns > changed.at_ns)


def test_the_child_dies_with_its_parent_even_inside_a_call() -> None:
    program = (
        "import sys, time; from ppscope.sources.gpu import GpuSource; from ppscope.records import Server\n"
        "source = GpuSource(lambda record: None)\n"
        "source.start(Server(0, 1, 0, 'launch_server', 'serving', (), 1, 1, 1))\n"
        "while not source.children(): time.sleep(0.01)\n"
        "print(source.children()[0], flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=fake_nvml_env("hang_init")
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while _running(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _running(child)


def _running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_the_child_ends_when_nobody_reads() -> None:
    command = [sys.executable, "-m", "ppscope.sources.gpu_child", "--hz", "50", "--parent", str(os.getpid())]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env=fake_nvml_env("healthy"))
    assert child.stdout is not None
    assert child.stdout.read(100)
    child.stdout.close()
    assert child.wait(20) == 0


class OldBinding:
    """An nvidia-ml-py that knows little more than PCIe throughput, and counts who asks."""

    NVMLError = pynvml.NVMLError
    NVML_CLOCK_SM = NVML_CLOCK_MEM = NVML_TEMPERATURE_GPU = NVML_PCIE_UTIL_TX_BYTES = 0
    NVML_PCIE_UTIL_RX_BYTES = 1
    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus
        self.asked: list[int] = []

    def nvmlInit(self) -> None:
        return None

    def nvmlDeviceGetCount(self) -> int:
        return self._gpus

    def nvmlSystemGetDriverVersion(self) -> str:
        return "1"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"handle {index}"

    def nvmlDeviceGetPcieThroughput(self, handle: str, counter: int) -> int:
        if counter == 0:
            self.asked.append(int(handle.split()[1]))
        return 7


def test_the_slow_call_goes_round_the_gpus_and_asks_each_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    binding = OldBinding(3)
    monkeypatch.setattr(gpu_nvml, "pynvml", binding)
    reader = gpu_nvml.NvmlReader()
    reader.open()
    assert [device.name for device in reader.devices(0)] == ["unknown GPU"] * 3
    per_tick = []
    for tick in range(18):
        before = len(binding.asked)
        samples = reader.sample(tick * 200_000_000)
        assert [sample.index for sample in samples] == [0, 1, 2]
        per_tick.append(len(binding.asked) - before)
    assert max(per_tick) == 1
    assert Counter(binding.asked) == {0: 3, 1: 3, 2: 3}


@pytest.mark.parametrize(
    ("bus", "node", "expected"),
    [
        ("00000000:65:00.0", "1", 1),
        ("00010000:65:00.0", "0", 0),
        ("00000000:65:00.0", "-1", None),
        ("00000000:65:00.0", "?", None),
        ("nonsense", "1", None),
        (None, "1", None),
    ],
)
def test_numa_node_comes_from_sysfs(tmp_path: Path, bus: str | None, node: str, expected: int | None) -> None:
    for address in ("0000:65:00.0", "10000:65:00.0"):
        folder = tmp_path / "bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(node + "\n")
    assert gpu_nvml.numa_node(bus, str(tmp_path)) == expected


def test_every_trouble_has_one_line_and_fits_the_stream() -> None:
    troubles = [gpu_errors.NO_GPUS, gpu_errors.NO_BINDING]
    troubles += [gpu_errors.init_trouble(code, "text") for code in range(31)]
    troubles += [gpu_errors.lost_trouble(3, code, "text") for code in range(31)]
    for trouble in troubles:
        assert trouble.state in ("off", "dead", "degraded")
        assert trouble.message
        assert "\n" not in trouble.message + trouble.remedy
        encode(SourceStatus("gpu", 0, *trouble))


def test_error_codes_and_reason_bits_are_nvmls_own() -> None:
    for name in ("NOT_SUPPORTED", "NO_PERMISSION", "GPU_IS_LOST", "LIB_RM_VERSION_MISMATCH", "RESET_REQUIRED"):
        assert getattr(gpu_errors, name) == getattr(pynvml, f"NVML_ERROR_{name}")
    # What the installed nvidia-ml-py knows has a name here; an older one knows fewer.
    prefix = "nvmlClocksThrottleReason"
    known = {bit for name, bit in vars(pynvml).items() if name.startswith(prefix) and bit.bit_count() == 1}
    assert known <= {bit for bit, _, _ in THROTTLE_REASONS}


@pytest.mark.parametrize(
    ("mask", "names", "holds_back"),
    [
        (0, (), False),
        (1, ("gpu_idle",), False),
        (0x5, ("gpu_idle", "sw_power_cap"), True),
        (0x60, ("sw_thermal", "hw_thermal"), True),
        (1 << 40, ("0x10000000000",), True),
    ],
)
def test_throttle_reasons_have_names(mask: int, names: tuple[str, ...], holds_back: bool) -> None:
    assert throttle_names(mask) == names
    assert throttled(mask) is holds_back
