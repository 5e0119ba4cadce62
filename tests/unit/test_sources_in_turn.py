"""Every source killed, frozen and slow in turn: it says so or comes through, the others go on, and nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from ppscope.records import Burst, Fact, GpuSample, HostSamples, LoopSample, Rules, Server, SourceStatus, StackSpans
from ppscope.sources import gpu, rules_source, stacks, stacks_dumps, stacks_windows
from ppscope.sources.base import Source
from ppscope.sources.burst_folder import VARIABLE
from ppscope.sources.burst_run import BurstRun
from ppscope.sources.gpu import GpuSource
from ppscope.sources.host import HostSource
from ppscope.sources.rules_source import RulesSource
from ppscope.sources.server import ServerSource
from ppscope.sources.server_keys import Keys
from ppscope.sources.stacks import StackSource
from ppscope.sources.stacks_dumps import DumpSource
from ppscope.sources.stacks_pyspy import find_pyspy
from tests.fake_nvml import fake_nvml_env
from tests.unit import test_burst_run as bursts
from tests.unit import test_findings_rules_source as books
from tests.unit import test_server_source as servers
from tests.unit import test_stacks_source as stack_tests
from tests.unit.gpu_host_tools import Gathered, alive
from tests.unit.tiny_http import Answer, TinyHttp, eventually, raw, tiny_http

UNWELL = ("degraded", "dead", "stalled")
FAULTS = ("killed", "frozen", "slow")
DATA: dict[str, type] = {"stacks": StackSpans, "dumps": LoopSample, "gpu": GpuSample, "rules": Rules}
"""What each source that works through a child gives when it is well."""


class Torment(threading.Thread):
    """Kills or freezes the children of a source as they come, or lets them run a tenth of the time."""

    def __init__(self, children: Callable[[], tuple[int, ...]], fault: str, most: int) -> None:
        super().__init__(daemon=True)
        self._children, self._fault, self._most = children, fault, most
        self._over = threading.Event()
        self.hit: set[int] = set()

    def run(self) -> None:
        while not self._over.wait(0.001):
            for pid in self._children():
                if pid in self.hit and self._fault != "slow":
                    continue
                if pid not in self.hit and len(self.hit) >= self._most:
                    continue
                self.hit.add(pid)
                self._send(pid, signal.SIGKILL if self._fault == "killed" else signal.SIGSTOP)
            if self._fault == "slow":
                self._over.wait(0.018)
                self.release()

    def release(self) -> None:
        for pid in self.hit:
            self._send(pid, signal.SIGCONT)

    def end(self) -> None:
        self._over.set()
        self.join()
        self.release()

    @staticmethod
    def _send(pid: int, number: int) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return


@pytest.fixture
def target() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(stack_tests.TARGET)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    yield process.pid
    process.kill()
    process.communicate()


def build(name: str, heard: Gathered, folder: Path) -> Source:
    """A source with little patience."""
    if name == "stacks":
        return StackSource(heard)
    if name == "dumps":
        return DumpSource(heard)
    if name == "gpu":
        return GpuSource(heard, hz=50.0, environment=fake_nvml_env("healthy", gpus=2), backoff_s=0.01)
    package = folder / "sglang"
    (package / "srt").mkdir(parents=True)
    (package / "srt" / "server_args.py").write_text(books.ARGS)
    (package / "version.py").write_text('__version__ = "0.5.11"\n')
    return RulesSource(heard, lambda: (str(package), ""), delay_s=0.2)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", DATA)
def test_a_source_whose_child_is_killed_frozen_or_slow(
    name: str, fault: str, target: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in ("stacks", "dumps") and find_pyspy() is None:
        pytest.skip("py-spy is not installed")
    for module, constant, value in (
        (stacks, "FIRST_WINDOW_S", 0.2), (stacks, "BACKOFF_S", (0.05,)), (stacks_windows, "WATCHDOG_S", 0.5),
        (stacks_dumps, "TIMEOUT_S", 0.5), (stacks_dumps, "INTERVAL_S", 0.05), (gpu, "STALLED_S", 0.5),
    ):  # fmt: skip
        monkeypatch.setattr(module, constant, value)
    if fault == "frozen":
        monkeypatch.setattr(rules_source, "TIMEOUT_S", 1.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    heard, beside = Gathered(), Gathered()
    source, other = build(name, heard, tmp_path), HostSource(beside)
    server = stack_tests.server_of(target)
    torment = Torment(source.children, fault, most=1_000_000 if fault == "slow" else 2)
    torment.start()
    other.start(server)
    source.start(server)
    try:
        if fault == "slow":
            # A short child may have come and gone unseen.
            assert eventually(lambda: bool(torment.hit))
            heard.wait(DATA[name], count=max(len(heard.of(DATA[name])), 1))
        else:
            said = heard.wait(SourceStatus, lambda status: status.state in UNWELL)[0]
            assert said.message
            assert "Error" not in said.message
        before = len(beside.of(HostSamples))
        beside.wait(HostSamples, count=before + 2)
        torment.end()
        if name != "rules":  # read once; the others come back by themselves
            had = len(heard.of(DATA[name]))
            heard.wait(DATA[name], count=had + 2)
            assert eventually(lambda: set({s.rank: s.state for s in heard.of(SourceStatus)}.values()) == {"ok"})
    finally:
        torment.end()
        children = set(source.children()) | torment.hit
        source.stop()
        other.stop()
    assert torment.hit
    assert source.children() == ()
    assert eventually(lambda: not any(alive(pid) for pid in children))


@pytest.mark.parametrize("fault", FAULTS)
def test_the_reader_of_a_burst_killed_frozen_or_slow(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen one is ended by whoever waits: cancelling takes it away, and the server was not touched."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    profiler, told = bursts.FakeProfiler(), bursts.Told()
    run = BurstRun(told, bursts.server(), Burst(rounds=2), profiler, bursts.QUICK)
    torment = Torment(lambda: () if run.child is None else (run.child,), fault, most=1_000_000)
    torment.start()
    run.start()
    try:
        if fault == "frozen":
            assert eventually(lambda: bool(torment.hit) and told.states[-1].state == "reading")
            run.cancel()
        assert eventually(lambda: not run.active), told.text()
    finally:
        torment.end()
    state, wanted = told.states[-1], {"killed": "failed", "frozen": "cancelled", "slow": "done"}
    assert state.state == wanted[fault], told.text()
    if fault == "killed":
        assert "could not be read" in state.message
    assert profiler.stops == []
    assert eventually(lambda: not any(alive(pid) for pid in torment.hit))


def serving(http: TinyHttp) -> Server:
    return msgspec.structs.replace(
        servers.BARE, kind="launch_server", state="serving", launcher_pid=2**22 + 1, host="127.0.0.1", port=http.port,
        facts=(Fact("port.owned", "yes", "socket"),),
    )  # fmt: skip


PATHS = {"model_info": "http", "server_info": "http", "metrics": "metrics"}


def slow(server: TinyHttp, path: str) -> Answer:
    data = {"metrics": servers.data("metrics-0.5.23.txt"), "server_info": servers.data("server_info-0.5.23.json")}
    body = data.get(path, b"{}")
    head = b"HTTP/1.1 200 OK\r\nX: %b\r\nContent-Length: %d\r\n\r\n" % (b"y" * 4000, len(body))
    return server.drip(head + body)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("path", PATHS)
def test_an_answer_of_the_server_that_is_cut_missing_or_slow(
    path: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppscope.sources.server_ask.INFO_SLOW_S", 0.2)
    monkeypatch.setattr("ppscope.sources.server_scrape.READ_S", 0.3)
    heard = Gathered()
    with tiny_http(**servers.healthy()) as http:
        http.routes[f"/{path}"] = {"killed": raw(b""), "frozen": http.hang, "slow": slow(http, path)}[fault]
        source = ServerSource(heard, Keys({}))
        source.start(serving(http))
        try:
            said = heard.wait(SourceStatus, lambda status: status.name == PATHS[path] and status.state in UNWELL)
            assert said[0].message
            well = {"http", "metrics"} - {PATHS[path]}
            heard.wait(SourceStatus, lambda status: status.name in well and status.state == "ok")
        finally:
            source.stop()


def test_a_metrics_page_of_fifty_megabytes_is_given_up_early_and_takes_no_memory() -> None:
    """Of such a page no more than 8 MB are read; a page of known series alone is kept up to their usual number."""
    line = b'sglang:num_queue_reqs{model_name="m",pp_rank="0",tp_rank="%d",moe_ep_rank="0"} 1.0\n'
    page = b"".join(line % number for number in range(50_000_000 // len(line)))
    assert len(page) > 48_000_000
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(page), page)
    heard = Gathered()
    with tiny_http(**servers.healthy() | {"metrics": raw(answer)}) as http:
        source = ServerSource(heard, Keys({}))
        tracemalloc.start()
        try:
            source.start(serving(http))
            heard.wait(
                SourceStatus,
                lambda status: status.name == "metrics" and "larger than 8 MB" in status.message,
            )
            heard.wait(SourceStatus, lambda status: status.name == "http" and status.state == "ok")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            source.stop()
    assert peak < 40 << 20, "the page itself was made before"
