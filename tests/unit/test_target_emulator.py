"""The finder against real processes: the emulated server, from each of its pids."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ppscope.emulator.handle import EmulatedServer, start
from ppscope.records import RankKey
from ppscope.target.processes import find_server, resolve, still_there


@pytest.fixture(scope="module")
def server() -> Iterator[EmulatedServer]:
    with start("healthy", pp=2, tp=2) as running:
        yield running


def test_every_process_of_the_emulated_server_leads_to_all_of_it(server: EmulatedServer) -> None:
    found = resolve(server.pid)
    assert (found.kind, found.state, found.port, found.emulated, found.device) == (
        "launch_server",
        "serving",
        server.port,
        True,
        "cuda",
    )
    assert [rank.key for rank in found.ranks] == [RankKey(0, pp, tp) for pp in range(2) for tp in range(2)]
    assert [rank.gpu.index for rank in found.ranks if rank.gpu] == [0, 1, 2, 3]
    assert found.port_check is not None
    assert found.port_check.owned == "yes"
    assert found.installed.version == "0.5.23"
    assert found.sglang_path_here is not None
    assert Path(found.sglang_path_here, "srt").is_dir()
    members = [rank.pid for rank in found.ranks] + [pid for pid, _ in found.others]
    threads = [int(name) for name in os.listdir(f"/proc/{found.ranks[0].pid}/task")]
    assert {find_server(pid).launcher_pid for pid in [*members, *threads]} == {server.pid}
    assert any(title == "sglang::detokenizer" for _, title in found.others)


def test_a_server_that_was_stopped_is_noticed() -> None:
    with start("healthy", pp=2, wait_until="started") as running:
        found = resolve(running.pid)
        assert found.state in ("loading", "serving")
        assert still_there(found.launcher_pid, found.launcher_started_ticks) == "alive"
    assert still_there(found.launcher_pid, found.launcher_started_ticks) in ("gone", "pid_reused")
