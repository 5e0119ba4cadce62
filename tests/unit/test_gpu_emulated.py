"""Emulated GPUs: a file of somebody else's in the place of NVML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.collect.stream import encode
from ppscope.records import GpuDevice, GpuSample
from ppscope.sources import gpu_emulated
from ppscope.sources.gpu import GpuSource
from ppscope.sources.gpu_emulated import VARIABLE, EmulatedReader, UnreadableFile, find_path, parse, read
from tests.unit.gpu_host_tools import Gathered, server_of

GPU = {
    "index": 3,
    "uuid": "GPU-emulated-3",
    "name": "Emulated B200",
    "power_w": 85.5,
    "power_limit_w": 600,
    "util_percent": 3,
    "memory_used_bytes": 20,
    "memory_total_bytes": 192,
    "sm_clock_mhz": 345,
    "mem_clock_mhz": 2619,
    "temperature_c": 34,
    "pcie_tx_kb_s": 12,
    "pcie_rx_kb_s": 8,
    "throttle_reasons": 4,
    "pids": [41, 42],
}


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A process whose environment names the file, and the file's path."""
    path = tmp_path / "gpus.json"
    environment = {**os.environ, VARIABLE: str(path)}
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment)
    try:
        yield process.pid, path
    finally:
        process.communicate(b"\n")


def test_the_file_is_read_like_nvml_and_marked_emulated(launcher: tuple[int, Path]) -> None:
    pid, path = launcher
    gathered = Gathered()
    source = GpuSource(gathered, hz=50)
    source.start(server_of(launcher_pid=pid, emulated=True))
    try:
        assert str(path) in gathered.status("degraded", "No such file").message
        path.write_text('[{"index": 3, "uui')
        gathered.status("degraded", "not what is expected")
        path.write_text(json.dumps([GPU]))
        gathered.status("ok", "emulated GPUs")
        (device,) = gathered.wait(GpuDevice)
        sample = gathered.wait(GpuSample, count=3)[0]
        path.write_text(json.dumps([GPU | {"power_limit_w": 500}]))
        changed = gathered.wait(GpuDevice, lambda device: device.power_limit_w == 500.0)[0]
        assert source.children() == ()
    finally:
        source.stop()
    assert device == GpuDevice(3, "GPU-emulated-3", "Emulated B200", 600.0, 192, emulated=True)
    assert sample == GpuSample(3, sample.at_ns, 85.5, 600.0, 3, None, 20, 345, 2619, 34, 12, 8, None, None, 4, (41, 42))
    assert changed.emulated
    assert len(gathered.of(GpuDevice)) == 2


def test_an_emulated_server_that_names_no_file_never_falls_back_to_real_gpus() -> None:
    gathered = Gathered()
    source = GpuSource(gathered)
    source.start(server_of(launcher_pid=os.getpid(), emulated=True))
    gathered.status("degraded", VARIABLE)
    source.stop()
    assert gathered.of(GpuDevice) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"index": -1}, "index"),
        ({"index": 10**30}, "index|range"),
        ({"uuid": None}, "uuid"),
        ({"uuid": "x" * 1000}, "uuid"),
        ({"power_w": "85"}, "power_w"),
        ({"power_w": -1}, "power_w"),
        ({"util_percent": 101}, "util_percent"),
        ({"memory_used_bytes": 2**64}, "memory_used_bytes"),
        ({"pids": [0]}, "pids"),
        ({"pids": list(range(1, 10_000))}, "pids"),
    ],
)
def test_values_that_cannot_be_are_refused_by_name(change: dict[str, object], said: str) -> None:
    with pytest.raises(UnreadableFile, match=said):
        parse(json.dumps([GPU | change]).encode())


@pytest.mark.parametrize("missing", sorted(set(GPU) - {"index", "uuid", "name"}))
def test_what_the_file_leaves_out_is_unknown(missing: str) -> None:
    (gpu,) = parse(json.dumps([{key: value for key, value in GPU.items() if key != missing}]).encode())
    assert getattr(gpu, missing) is None
    assert gpu == parse(json.dumps([GPU | {missing: None, "something_new": 1}]).encode())[0]


def test_two_gpus_of_one_index_are_refused() -> None:
    with pytest.raises(UnreadableFile, match="same index"):
        parse(json.dumps([GPU, GPU]).encode())


@pytest.mark.parametrize("kind", ["absent", "folder", "pipe", "device", "long", "no name"])
def test_a_file_that_is_no_file_is_told_and_never_waited_for(tmp_path: Path, kind: str) -> None:
    path = str(tmp_path / "gpus.json")
    if kind == "folder":
        os.mkdir(path)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = "/dev/zero"
    elif kind == "long":
        Path(path).write_bytes(b" " * (gpu_emulated.MAX_BYTES + 1))
    elif kind == "no name":
        path = "/\0"
    with pytest.raises(UnreadableFile):
        read(path)


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(GPU)), inner, max_size=4),
    max_leaves=8,
)


@given(
    st.binary(max_size=200)
    | st.dictionaries(st.sampled_from(sorted(GPU)), _values).map(lambda change: json.dumps([GPU | change]).encode())
    | _values.map(lambda value: json.dumps(value).encode())
    | st.integers(1, 100_000).map(lambda depth: b"[" * depth)
)
def test_no_content_crashes_the_reader_and_what_passes_fits_the_stream(data: bytes) -> None:
    try:
        gpus = parse(data)
    except UnreadableFile:
        return
    for gpu in gpus:
        encode(gpu.device())
        encode(gpu.sample(0))


def test_a_device_is_told_once_and_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "gpus.json"
    reader = EmulatedReader(str(path))
    told = []
    for power in (1, 2, 3):
        path.write_text(json.dumps([GPU | {"power_w": power, "power_limit_w": 100 * (power // 3)}]))
        told.append([type(record).__name__ for record in reader.records()])
    assert told == [["GpuDevice", "GpuSample"], ["GpuSample"], ["GpuDevice", "GpuSample"]]


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        (b"A=1\0PPSCOPE_EMULATED_GPUS=/x/y.json\0B=2\0", "/x/y.json"),
        (b"PPSCOPE_EMULATED_GPUS=relative.json\0", None),
        (b"XPPSCOPE_EMULATED_GPUS=/x\0", None),
        (b"", None),
    ],
)
def test_the_path_comes_from_the_launchers_environment(tmp_path: Path, environ: bytes, path: str | None) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "environ").write_bytes(environ)
    assert find_path(server_of(launcher_pid=7), str(tmp_path)) == path
    assert find_path(server_of(launcher_pid=8), str(tmp_path)) is None
