"""Key `p` in a pty against the emulator, and `ppscope trace` as a screen."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from ppscope import emulator
from ppscope.collect.client import CollectorProcess
from ppscope.records import Burst
from ppscope.session import Session
from ppscope.sources.burst_folder import VARIABLE
from tests.kineto import Pipeline
from tests.terminal.terminal import PPSCOPE, Terminal, all_gone


@pytest.fixture(scope="module", params=["serial", "eager"])
def server(request: pytest.FixtureRequest) -> Iterator[emulator.EmulatedServer]:
    with emulator.start(str(request.param), 4) as running:
        yield running


def attach(server: emulator.EmulatedServer, folder: Path) -> Terminal:
    command = [str(PPSCOPE), "attach", str(server.pid)]
    return Terminal(command, columns=160, lines=50, env={VARIABLE: str(folder)})


def test_a_burst_by_key(server: emulator.EmulatedServer, tmp_path: Path) -> None:
    with attach(server, tmp_path) as terminal:
        terminal.wait_for("PP3")
        terminal.send("p")
        terminal.wait_for("16 micro-batches")
        terminal.wait_for("stands still")
        terminal.send("-")
        terminal.wait_for("12 micro-batches")
        terminal.send("\r")
        terminal.wait_for("burst running")
        text = terminal.wait_for("4 of 4 ranks read", 40)
        text = terminal.wait_for(lambda shown: shown.count("gpu lane") == 4 and "fused_moe_kernel" in shown, 20)
        assert re.search(r"PP0 +0 .* \d+ % +[=~] ", text), "busy is known now"
        assert "pipeline.bubbles" in text or "imbalance" in text or "eager" in text
        terminal.send("\r")
        text = terminal.wait_for("cudaLaunchKernel")
        assert "a step" in text
        everything = terminal.descendants()
        terminal.send("q")
        assert terminal.wait() == 0
        assert all_gone(everything) == []
    assert list(tmp_path.iterdir()) == []
    assert psutil.Process(server.pid).is_running()


def test_esc_asks_for_nothing_and_leaving_stops_the_profile(tmp_path: Path) -> None:
    with emulator.start("idle", 2) as idle, attach(idle, tmp_path) as terminal:
        terminal.wait_for("PP1")
        terminal.send("p")
        terminal.wait_for("profile burst")
        terminal.send("\x1b")
        terminal.wait_for(lambda text: "PP1" in text)
        assert list(tmp_path.iterdir()) == []
        terminal.send("p")
        terminal.wait_for("profile burst")
        terminal.send("\r")
        terminal.wait_for("burst running")
        (folder,) = tmp_path.iterdir()
        terminal.send("q")
        assert terminal.wait() == 0
        assert folder.name in terminal.text.replace("\n", ""), "what is left behind is named"
        log = Path(idle.folder) / "server.log"
        deadline = time.monotonic() + 10
        while "/stop_profile" not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert log.read_text().count("/stop_profile") == 1
        assert psutil.Process(idle.pid).is_running()


def test_a_burst_can_be_cancelled(tmp_path: Path) -> None:
    with emulator.start("idle", 2) as idle, attach(idle, tmp_path) as terminal:
        terminal.wait_for("PP1")
        terminal.send("p")
        terminal.wait_for("profile burst")
        terminal.send("\r")
        terminal.wait_for("burst running")
        terminal.send("p")
        terminal.wait_for("throw its traces away")
        terminal.send("x")
        terminal.wait_for("burst cancelled", 20)
        assert list(tmp_path.iterdir()) == []
        terminal.send("q")
        assert terminal.wait() == 0


def test_a_leak_is_found_by_a_burst_and_by_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with emulator.start("leaky", 2) as leaky:
        session = Session(CollectorProcess(["--pid", str(leaky.pid)]))
        try:
            wait_until(session, lambda: session.active(session.present_ns()) is True)
            session.send(Burst(10))
            wait_until(session, lambda: bool(session.screen().findings))
            (finding,) = session.screen().findings
        finally:
            session.close()
    assert (finding.id, finding.provenance) == ("graphs.eager_leak", "exact")
    assert any("elementwise" in line for line in finding.evidence)


def wait_until(session: Session, true: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        session.poll()
        if true():
            return
        time.sleep(0.1)
    raise AssertionError(session.screen().burst)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    pipeline = Pipeline([3_000_000, 9_000_000], steps=12, leaks=[(1, 9, "late_kernel")]).build()
    pipeline.write(tmp_path)
    return tmp_path


def test_traces_as_a_screen(traces: Path) -> None:
    with Terminal([str(PPSCOPE), "trace", str(traces)], columns=120, lines=40) as terminal:
        text = terminal.wait_for(lambda shown: shown.count("gpu lane") == 2 and "late_kernel" in shown)
        assert "graphs.eager_leak" in text
        assert "pid 0" not in text
        assert "profile  " not in text.splitlines()[-1]
        terminal.send("\r")
        terminal.wait_for("replay was expected")
        terminal.send("q")
        assert terminal.wait() == 1, "there are findings"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PPSCOPE), "trace", *arguments], capture_output=True, text=True, timeout=30, check=False,
        stdin=subprocess.DEVNULL, env=dict(os.environ),
    )  # fmt: skip


def test_traces_without_a_terminal(traces: Path) -> None:
    text = run(str(traces))
    assert (text.returncode, "graphs.eager_leak" in text.stdout) == (1, True)
    said = json.loads(run(str(traces), "--json").stdout)
    assert said["schema"] == "ppscope.trace/1"
    page = traces / "page.html"
    assert run(str(traces), "-o", str(page)).returncode == 1
    assert b"late_kernel" in page.read_bytes() or page.stat().st_size > 10_000
    assert run(str(traces / "missing")).returncode == 3
    assert run().returncode == 2
    assert "Traceback" not in run(str(traces / "missing")).stderr
