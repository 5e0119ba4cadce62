"""A burst of the real server through the real collector, and the kept files through `ppscope trace`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ppscope.collect.client import CollectorProcess
from ppscope.records import AnyRecord, Burst, BurstRank, BurstReport, BurstStatus, Server
from tests.sglang.server import ServerSpec, SglangServer

SERVERS = [ServerSpec("0.5.23", 2)]
ROUNDS = 3


class Heard:
    """A collector attached to a server, and everything it said."""

    def __init__(self, stream: CollectorProcess) -> None:
        self.stream = stream
        self.records: list[AnyRecord] = []

    def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Listen until the condition holds; False after the time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.stream.wait(0.2)
            self.records += self.stream.drain()
            if condition():
                return True
        return False

    def burst_over(self) -> bool:
        return any(isinstance(r, BurstStatus) and r.state in ("done", "failed", "cancelled") for r in self.records)

    def serving(self) -> bool:
        return any(isinstance(r, Server) and r.state == "serving" for r in self.records)

    def ranks(self) -> dict[int, BurstRank]:
        return {r.rank.pp: r for r in self.records if isinstance(r, BurstRank)}


@contextmanager
def attached(server: SglangServer) -> Iterator[Heard]:
    stream = CollectorProcess(["--pid", str(server.pid), "--rate", "20"])
    try:
        heard = Heard(stream)
        assert heard.until(heard.serving, 20)
        yield heard
    finally:
        stream.close()


@pytest.mark.parametrize("sglang_server", SERVERS, indirect=True, ids=str, scope="session")
class TestBurst:
    def test_a_burst_gives_every_stage_its_spans_and_steps(self, sglang_server: SglangServer) -> None:
        pp = sglang_server.spec.pp
        before = sglang_server.pids()
        with sglang_server.load(4, 18, 64), attached(sglang_server) as heard:
            time.sleep(2)
            heard.stream.send(Burst(ROUNDS, keep=True))
            assert heard.until(heard.burst_over, 60), [r for r in heard.records if isinstance(r, BurstStatus)][-1:]
            last = [r for r in heard.records if isinstance(r, BurstStatus)][-1]
        assert last.state == "done", last
        assert last.folder is not None
        try:
            ranks = heard.ranks()
            assert sorted(ranks) == list(range(pp))
            report = next(r for r in heard.records if isinstance(r, BurstReport))
            assert report.start_ns is not None
            assert report.end_ns is not None
            now_ns = time.monotonic_ns()
            assert now_ns - 90_000_000_000 < report.start_ns < report.end_ns < now_ns
            for rank in ranks.values():
                assert len([s for s in rank.steps if s.mode in ("DECODE", "EXTEND", "MIXED")]) >= ROUNDS * pp - 1
                assert {"run_batch", "recv_requests", "get_next_batch_to_run"} <= set(rank.names)
                assert rank.host_starts_ns
                assert rank.kernels[0] == 0
                assert rank.busy_fraction is None, "a CPU server's trace has no GPU work"
            assert sglang_server.pids() == before, "the server is as it was"
            self._trace_command(Path(last.folder), pp)
        finally:
            shutil.rmtree(last.folder)

    def _trace_command(self, folder: Path, pp: int) -> None:
        done = subprocess.run(
            [str(Path(sys.executable).with_name("ppscope")), "trace", str(folder), "--json"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert [rank["stage"] for rank in said["ranks"]] == list(range(pp))
        assert all(len(rank["steps"]) >= ROUNDS * pp - 1 for rank in said["ranks"])

    def test_a_burst_without_traffic_is_stopped_and_leaves_nothing(self, sglang_server: SglangServer) -> None:
        time.sleep(3)
        with attached(sglang_server) as heard:
            heard.stream.send(Burst(1))
            assert heard.until(heard.burst_over, 75)
            states = [r for r in heard.records if isinstance(r, BurstStatus)]
        assert any("too little traffic" in r.message for r in states)
        folder = next(r.folder for r in states if r.folder is not None)
        assert not Path(folder).exists()
        assert len(sglang_server.pids()) >= sglang_server.spec.pp + 1
        sglang_server.recipe("ask")
