"""The process that reads a burst's traces, where it does not end when it is told to."""

from __future__ import annotations

import subprocess

import pytest

from ppscope.records import Burst
from ppscope.sources.burst_child import Job
from ppscope.sources.burst_reader import BurstReader
from ppscope.sources.burst_run import BurstRun
from tests.unit.test_burst_run import FakeProfiler, Told, server


def stuck(_timeout: float | None = None) -> int:
    """A child that waits in the kernel (state D): not even SIGKILL ends it in time."""
    raise subprocess.TimeoutExpired("reader", 1.0)


@pytest.mark.parametrize("how", ["end", "cancel", "leave"])
def test_a_reader_that_outlives_its_kill_raises_nowhere(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = BurstReader(Job(1, [], 0))
    burst = BurstRun(Told(), server(), Burst(2), FakeProfiler())
    monkeypatch.setattr(burst, "_reader", reader)
    with monkeypatch.context() as patch:
        patch.setattr(reader._process, "wait", stuck)
        {"end": reader.end, "cancel": burst.cancel, "leave": burst.leave}[how]()
    reader._process.wait(10)


def test_a_reader_that_does_not_end_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = BurstReader(Job(1, [], 0))
    with monkeypatch.context() as patch:
        patch.setattr(reader._process, "wait", stuck)
        list(reader.records())
    reader._process.wait(10)
    assert reader.trouble == "the reading process does not end"
