"""The finder against a real SGLang server: every pid of it, above it and inside it leads to the same server."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

from ppscope.records import RankKey
from ppscope.target.processes import find_server, resolve


class SglangServer(Protocol):
    """What the fixture `sglang_server` gives: a running server of the kit."""

    pid: int
    port: int
    log: str
    pids: Callable[[], object]


CASES = [pytest.param({"version": "0.5.23", "pp": 2, "tp": 1, "extra": ""}, id="0.5.23-pp2")]


def descendants(pid: int) -> list[int]:
    """Every process below a real one."""
    below = [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]
    return below + [deeper for child in below for deeper in descendants(child)]


@pytest.mark.parametrize("sglang_server", CASES, indirect=True)
def test_every_pid_of_a_real_server_leads_to_all_of_it(sglang_server: SglangServer) -> None:
    found = resolve(sglang_server.pid)
    assert (found.kind, found.state, found.device) == ("launch_server", "serving", "cpu")
    assert [rank.key for rank in found.ranks] == [RankKey(0, pp, 0) for pp in range(found.placement.pp_size)]
    assert all(rank.gpu is None for rank in found.ranks)  # a CPU server has none
    assert (found.port, found.port_check.owned if found.port_check else None) == (sglang_server.port, "yes")
    assert found.sglang_path_here is not None
    assert Path(found.sglang_path_here, "srt", "managers", "scheduler.py").is_file()
    thread = int(sorted(os.listdir(f"/proc/{found.ranks[-1].pid}/task"))[0])
    below = descendants(sglang_server.pid)
    assert {rank.pid for rank in found.ranks} | {pid for pid, _ in found.others} <= set(below)
    assert {find_server(pid).launcher_pid for pid in [*below, thread]} == {sglang_server.pid}


@pytest.mark.parametrize("sglang_server", CASES, indirect=True)
def test_the_version_is_the_installed_one(sglang_server: SglangServer, request: pytest.FixtureRequest) -> None:
    wanted = request.node.callspec.params["sglang_server"]["version"]
    assert find_server(sglang_server.pid).installed.version == wanted
