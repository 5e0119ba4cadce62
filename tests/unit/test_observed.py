"""When a pid that NVML names is believed to be one of ours: never by a number alone where it may be the host's."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppscope.collect.observed import Observed
from ppscope.records import GpuDevice, GpuSample
from ppscope.target.processes import find_servers
from ppscope.target.procfs import Proc, contained
from tests.unit.fake_proc import FakeProc

PYTHON = "/usr/bin/python3"
LAUNCH = (PYTHON, "-m", "sglang.launch_server", "--model-path", "m", "--pp-size", "2")


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    fake = FakeProc(tmp_path)
    fake.add(100, LAUNCH, env={}, exe=PYTHON, fds=[], maps=["/x/libcuda.so.1"])
    for pp in range(2):
        fake.add(101 + pp, f"sglang::scheduler_PP{pp}", 100, env={}, exe=PYTHON, fds=[], maps=["/x/libcuda.so.1"])
    return fake


@pytest.mark.parametrize(
    ("inside", "listed", "joined"),
    [
        (False, {3: (101,)}, {0: 3}),
        (False, {3: (101,), 2: (102,)}, {0: 3, 1: 2}),
        (False, {3: (101,), 1: (9999,)}, {0: 3}),  # a context that is left behind, or somebody's that has just ended
        (None, {3: (101,), 1: (9999,)}, {}),  # one that is not here: NVML may speak of another namespace
        (None, {3: (101,), 1: (100,)}, {0: 3}),
        (True, {3: (101,)}, {}),  # all of them are here, but the host's 101 may be anybody
        (True, {3: (100, 101)}, {}),
        (True, {3: (101,), 2: (102,)}, {0: 3, 1: 2}),  # every rank, each on a GPU of its own: that is no chance
        (True, {3: (101, 102)}, {}),
    ],
)
def test_a_number_alone_joins_no_rank_in_a_container(
    fake: FakeProc, inside: bool | None, listed: dict[int, tuple[int, ...]], joined: dict[int, int]
) -> None:
    (found,) = find_servers(fake.root)
    observed = Observed(Proc(fake.root), inside)
    for index in range(4):
        observed.note(GpuDevice(index, f"GPU-{index}", "H200"))
        observed.note(GpuSample(index, 1, pids=listed.get(index, ())))
    server = observed.join(found, 1)
    assert {r.key.pp: r.gpu.index for r in server.ranks if r.gpu and r.gpu.source == "nvml_pid"} == joined


@pytest.mark.parametrize(("link", "inside"), [("pid:[4026531836]", False), ("pid:[4026532301]", True), (None, None)])
def test_the_first_pid_namespace_is_the_machines_own(fake: FakeProc, link: str | None, inside: bool | None) -> None:
    if link is not None:
        (fake.folder / "self" / "ns" / "pid").symlink_to(link)
    assert contained(Proc(fake.root)) is inside
