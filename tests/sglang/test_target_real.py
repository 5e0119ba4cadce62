"""The finder against a real SGLang server: every pid of it and inside it leads to the same server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ppscope.records import RankKey
from ppscope.target.processes import find_server, resolve
from tests.sglang.server import ServerSpec, SglangServer


def descendants(pid: int) -> list[int]:
    """Every process below a real one."""
    below = [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]
    return below + [deeper for child in below for deeper in descendants(child)]


@pytest.mark.parametrize("sglang_server", [ServerSpec()], indirect=True, ids=lambda spec: f"{spec.version}-pp{spec.pp}")
def test_every_pid_of_a_real_server_leads_to_all_of_it(sglang_server: SglangServer) -> None:
    found = resolve(sglang_server.pid)
    assert (found.kind, found.state, found.device) == ("launch_server", "serving", "cpu")
    assert found.installed.version == sglang_server.spec.version
    assert [rank.key for rank in found.ranks] == [RankKey(0, pp, 0) for pp in range(sglang_server.spec.pp)]
    assert all(rank.gpu is None for rank in found.ranks)  # a CPU server has none
    assert (found.port, found.port_check.owned if found.port_check else None) == (sglang_server.port, "yes")
    assert found.sglang_path_here is not None
    assert Path(found.sglang_path_here, "srt", "managers", "scheduler.py").is_file()
    below = descendants(sglang_server.pid)
    threads = [int(name) for name in os.listdir(f"/proc/{found.ranks[-1].pid}/task")][:3]
    assert {rank.pid for rank in found.ranks} | {pid for pid, _ in found.others} <= set(below)
    assert {find_server(pid).launcher_pid for pid in [*below, *threads]} == {sglang_server.pid}
