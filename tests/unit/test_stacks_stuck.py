"""A py-spy that cannot be ended, as in state D, costs no core and holds up nobody else."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ppscope.records import AnyRecord, Rank, RankKey, Server, SourceStatus
from ppscope.sources import stacks_dump_run, stacks_dumps, stacks_windows
from ppscope.sources.stacks import StackSource, _Sampled
from ppscope.sources.stacks_dump_run import run_dump
from ppscope.sources.stacks_dumps import DumpSource
from ppscope.sources.stacks_windows import Window, catches_interrupts

KEY = RankKey(0, 0, 0)
LOOPING = "while :; do sleep 0.02; done"


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def pyspy(folder: Path, body: str) -> str:
    script = folder / "py-spy"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o700)
    return str(script)


def sleeper(folder: Path) -> int:
    """Its pid, 0 while the shell has not written it."""
    path = folder / "sleeper"
    return int(path.read_text() or 0) if path.exists() else 0


@pytest.mark.parametrize("answers", [False, True])
def test_a_killed_window_that_does_not_end_is_not_waited_for_in_a_busy_loop(
    answers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks_windows, "WATCHDOG_S", 0.2)
    # The sleeper keeps the pipe open after the kill: so it looks when py-spy itself does not end.
    trap = "trap : INT" if answers else "trap '' INT"
    binary = pyspy(tmp_path, f"{trap}\nsleep 1000 &\necho $! > {tmp_path}/sleeper\n{LOOPING}")
    window = Window(binary, os.getpid(), 50, 0.1)
    sampled = _Sampled(Rank(KEY, os.getpid(), 0, ""), 0, running=[window], ended=True)
    heard: list[AnyRecord] = []
    source = StackSource(heard.append)
    try:
        until(lambda: sleeper(tmp_path) and catches_interrupts(window.pyspy_pid) is answers)
        now_ns = window.due_ns + 1
        while not window.killed:
            now_ns = source._drive(sampled, now_ns)
        assert (window.interrupted_ns is not None) is answers
        assert not window.drain()
        assert source._drive(sampled, now_ns) > now_ns
        assert not heard
        source._drive(sampled, now_ns + 2_000_000_000)
        assert [s.state for s in heard if isinstance(s, SourceStatus) and "does not end" in s.message] == ["degraded"]
    finally:
        window.kill()
        os.kill(int((tmp_path / "sleeper").read_text()), signal.SIGKILL)
        until(window.drain)
        window.finish()


@pytest.mark.parametrize("speaks_no_more", [False, True])
def test_a_dump_that_cannot_be_ended_is_left_and_said_and_no_other_is_begun_until_it_is_gone(
    speaks_no_more: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks_dumps, "TIMEOUT_S", 0.3)
    monkeypatch.setattr(stacks_dump_run, "_REAP_S", 0.1)
    monkeypatch.setattr(stacks_dumps, "INTERVAL_S", 0.05)
    end = "exec 2>&-" if speaks_no_more else ":"
    binary = pyspy(tmp_path, f"echo $$ >> {tmp_path}/begun; {end}; {LOOPING}")
    monkeypatch.setattr(stacks_dumps, "find_pyspy", lambda: binary)
    begun: Callable[[], list[int]] = lambda: [int(pid) for pid in (tmp_path / "begun").read_text().split()]  # noqa: E731
    kill, unkillable = os.kill, [True]
    monkeypatch.setattr(os, "kill", lambda pid, number: None if unkillable[0] else kill(pid, number))
    heard: list[AnyRecord] = []
    source = DumpSource(heard.append)
    source.start(Server(0, 1, 1, "launch_server", "serving", (Rank(KEY, os.getpid(), 0, ""),), 1, 1, 1))
    try:
        until(lambda: heard)
        [status] = [record for record in heard if isinstance(record, SourceStatus)]
        assert (status.state, status.rank) == ("degraded", KEY)
        assert "does not end" in status.message
        time.sleep(0.5)
        assert len(begun()) == 1
        unkillable[0] = False
        kill(begun()[0], signal.SIGKILL)
        until(lambda: len(begun()) > 1)
        assert not os.path.exists(f"/proc/{begun()[0]}"), "reaped"
    finally:
        unkillable[0] = False
        source.stop()
    assert source._thread is not None
    assert not source._thread.is_alive()


def test_a_dump_for_which_there_is_no_file_is_a_trouble_and_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(stacks_dump_run, "private_file", refused)
    output = run_dump("py-spy", os.getpid(), 1.0, threading.Event())
    assert output.trouble is not None
    assert "Too many open files" in output.trouble.message
