"""Processes that do not start: a collector is one clear line and exit code 3 for every command, any other child costs its own part."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import SimpleNamespace

import pytest

from ppscope import exits
from ppscope.cli import main
from ppscope.collect.client import CollectorProcess
from ppscope.commands import live
from ppscope.commands import record as recording
from ppscope.commands import rules as rules_of_server
from ppscope.probe.ring import started_ticks
from ppscope.records import AnyRecord, Burst, End, Rules, Server, SourceStatus
from ppscope.sources.burst_folder import VARIABLE
from ppscope.sources.burst_run import BurstRun
from ppscope.sources.gpu import GpuSource
from ppscope.sources.rules_source import RulesSource
from ppscope.trace.batch import analyse_files
from tests.kineto import Pipeline
from tests.shared import ROOT
from tests.unit import test_burst_run as bursts
from tests.unit.tiny_http import eventually

PID = "4242"
COMMANDS = {
    "attach": [PID],
    "check": [PID],
    "record": [PID, "-o", "{folder}/run.pps"],
    "rules": [PID],
    "snapshot": [PID, "-o", "{folder}/page.html"],
}
SCRIPTS = {
    "unexpectedly: killed by SIGKILL, as the out-of-memory killer does": "echo its last word >&2; kill -9 $$",
    "unexpectedly: killed by SIGTERM\n": "kill -15 $$",
    "unexpectedly: killed by signal 40\n": "kill -40 $$",
    "no reason given": "exit 1",
    "ModuleNotFoundError: No module named 'msgspec'": "echo \"ModuleNotFoundError: No module named 'msgspec'\" >&2; exit 1",
    "not a ppscope stream": "echo this is no stream; exit 0",
}


def test_every_command_that_starts_a_collector_is_in_the_table() -> None:
    sources = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "ppscope" / "commands").glob("*.py")}
    starting = {name for name, text in sources.items() if "CollectorProcess" in text}
    assert starting - {"live"} == set(COMMANDS) - {"attach"}
    assert "CollectorProcess" in sources["live"], "attach, and the demo through it"


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What collectors are started with; the caller writes it. Commands may set signal handlers, which are put back."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    there = SimpleNamespace(sglang_path_here=str(tmp_path), emulated=False, launcher_pid=int(PID), device=None)
    monkeypatch.setattr(rules_of_server, "resolve", lambda pid: there)
    monkeypatch.setattr(live, "not_a_terminal", lambda: None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    yield tmp_path / "python"
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def run(command: str, folder: Path) -> int:
    arguments = [command, *(word.format(folder=folder) for word in COMMANDS[command])]
    with pytest.raises(SystemExit) as ended:
        main.main(arguments, prog_name="ppscope")
    return int(str(ended.value.code))


def assert_one_line(command: str, python: Path, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(command, python.parent) == exits.CANNOT_ATTACH
    out, err = capfd.readouterr()
    assert out == ""
    (line,) = err.splitlines(keepends=True)
    assert line.startswith("ppscope: the collector ")
    assert said in line
    assert [path for path in python.parent.iterdir() if path != python] == [], "no file is begun"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("fault", ["No such file or directory", "Permission denied", "Exec format error"])
def test_a_collector_that_cannot_be_started(
    command: str, fault: str, python: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if fault != "No such file or directory":
        python.write_bytes(b"\x7fELF, or rather not")
    if fault == "Exec format error":
        python.chmod(0o755)
    assert_one_line(command, python, f"{python}: {fault}", capfd)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("said", SCRIPTS)
def test_a_collector_that_ends_at_once(
    command: str, said: str, python: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    python.write_text(f"#!/bin/sh\n{SCRIPTS[said]}\n")
    python.chmod(0o755)
    assert_one_line(command, python, said, capfd)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_collector_that_never_says_anything(
    command: str, python: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live, "_FIRST_WORD_S", 0.3)
    monkeypatch.setattr(recording, "_FIRST_SERVER_S", 0.3)
    python.write_text("#!/bin/sh\nexec cat > /dev/null\n")
    python.chmod(0o755)
    assert run(command, python.parent) == exits.CANNOT_ATTACH
    out, err = capfd.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("ppscope: no answer from the collector in ")


def test_the_stream_of_a_collector_that_did_not_start_is_over(python: Path) -> None:
    stream = CollectorProcess([])
    assert stream.pid is None
    assert stream.wait(60.0), "returns at once"
    (end,) = stream.drain()
    assert isinstance(end, End)
    stream.close()
    stream.close()


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


SERVER = Server(0, os.getpid(), started_ticks(os.getpid()) or 0, "node", "serving", (), 1, 1, 1)
Told = list[AnyRecord]


def gpus(told: Told, _folder: Path) -> None:
    source = GpuSource(told.append)
    source.start(SERVER)
    assert eventually(lambda: any(isinstance(record, SourceStatus) for record in told))
    source.stop()


def graph_rules(told: Told, folder: Path) -> None:
    source = RulesSource(told.append, lambda: (str(folder), ""), delay_s=0.0)
    source.start(SERVER)
    assert eventually(lambda: any(isinstance(record, SourceStatus) for record in told))
    source.stop()
    assert any(isinstance(record, Rules) and record.problem for record in told)


def burst(told: Told, _folder: Path) -> None:
    run = BurstRun(told.append, bursts.server(), Burst(rounds=2), bursts.FakeProfiler(), bursts.QUICK)
    run.start()
    assert eventually(lambda: not run.active)


@pytest.mark.parametrize("part", [gpus, graph_rules, burst])
def test_a_source_whose_child_does_not_start_says_so(
    part: Callable[[Told, Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(subprocess, "Popen", refuse)
    told: Told = []
    part(told, tmp_path)
    said = " ".join(str(getattr(record, "message", "")) for record in told)
    assert os.strerror(errno.EAGAIN) in said
    assert "fault in ppscope" not in said
    assert "Error" not in said


def test_traces_are_read_here_where_no_process_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Pipeline([1_000_000] * 2).build().write(tmp_path)
    bad = tmp_path / "bad.json"
    bad.write_text("not a trace")
    monkeypatch.setattr("ppscope.trace.batch.PARALLEL_BYTES", 0)
    monkeypatch.setattr(SpawnProcess, "start", refuse)
    before = len(os.listdir("/proc/self/fd"))
    found, errors = analyse_files([*files, bad], workers=2)
    assert (len(found), list(errors)) == (2, [bad])
    assert len(os.listdir("/proc/self/fd")) == before
