"""After every test here: nothing that it started still runs, and no process of a server is stopped."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

VARIABLE = "PPSCOPE_TEST"
GRACE_S = 5.0


def _started_with(value: str) -> list[psutil.Process]:
    """Processes that inherited this value, but for what only waits to be reaped."""
    found = []
    for process in psutil.process_iter():
        try:
            environ = Path(f"/proc/{process.pid}/environ").read_bytes()
            if f"{VARIABLE}={value}".encode() in environ and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (OSError, psutil.Error):
            continue
    return found


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server that several tests share was started before and does not have the value."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(VARIABLE, value)
    yield
    deadline = time.monotonic() + GRACE_S
    while (left := _started_with(value)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [said for process in left if (said := _said(process))] == [], "still running"
    stopped = [process for process in psutil.Process(os.getpid()).children(recursive=True) if _is_stopped(process)]
    assert stopped == [], "still stopped"


def _said(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return ""


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False
