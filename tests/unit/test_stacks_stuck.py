"""A py-spy that cannot be ended, as in state D, costs no core and holds up nobody else."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ppscope.records import AnyRecord, Rank, RankKey, SourceStatus
from ppscope.sources import stacks_windows
from ppscope.sources.stacks import StackSource, _Sampled
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
        until(lambda: (tmp_path / "sleeper").exists() and catches_interrupts(window.pyspy_pid) is answers)
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
