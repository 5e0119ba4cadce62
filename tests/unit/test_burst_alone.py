"""A server is never asked for a second profile while one runs, whoever asked for the first."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from ppscope.records import Burst
from ppscope.sources import burst_folder
from ppscope.sources.burst_alone import check_log, take_turn
from ppscope.sources.burst_checks import Unfit
from ppscope.sources.burst_folder import VARIABLE
from ppscope.sources.burst_run import BurstRun
from tests.unit.test_burst_run import QUICK, FakeProfiler, Told, server
from tests.unit.tiny_http import eventually

HOLD = """
import sys
from ppscope.sources.burst_alone import take_turn
turn = take_turn(int(sys.argv[1]))
print("mine", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(burst_folder, "PARENTS", ())


@contextmanager
def held(pid: int) -> Iterator[subprocess.Popen[str]]:
    """Another ppscope that profiles the server of this launcher."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "mine\n"
        try:
            yield other
        finally:
            other.kill()


def burst(profiler: FakeProfiler, told: Told, launcher_pid: int) -> BurstRun:
    of = msgspec.structs.replace(server(), launcher_pid=launcher_pid)
    return BurstRun(told, of, Burst(rounds=2), profiler, QUICK)


def finished(run: BurstRun) -> None:
    run.start()
    assert eventually(lambda: not run.active)


def test_a_server_that_another_ppscope_profiles_is_not_asked_until_that_one_is_gone() -> None:
    with held(os.getpid()) as other:
        profiler, told = FakeProfiler(), Told()
        finished(burst(profiler, told, os.getpid()))
        assert told.states[-1].state == "failed"
        assert "another ppscope profiles this server" in told.states[-1].message
        assert profiler.asked == []
        assert profiler.stops == [], "it is somebody else's profile"
        other.kill()
        other.wait()
        told = Told()
        finished(burst(profiler, told, os.getpid()))
    assert told.states[-1].state == "done"


def test_the_turn_is_of_one_server_and_held_to_the_end_of_a_burst() -> None:
    with subprocess.Popen(["sleep", "60"]) as elsewhere:
        first = burst(FakeProfiler(full=False), Told(), os.getpid())
        first.start()
        assert eventually(lambda: first._asked)
        with pytest.raises(Unfit, match="another ppscope"):
            take_turn(os.getpid())
        profiler, told = FakeProfiler(), Told()
        finished(burst(profiler, told, elsewhere.pid))
        assert told.states[-1].state == "done"
        assert eventually(lambda: not first.active)
        take_turn(os.getpid()).end()
        elsewhere.kill()


def test_a_launcher_that_is_gone_hinders_nobody() -> None:
    take_turn(1 << 22).end()


def line(text: str, rank: str = " PP0", ago_s: float = 5.0) -> str:
    return time.strftime(f"[%Y-%m-%d %H:%M:%S{rank}] ", time.gmtime(time.time() - ago_s)) + text


START = "Profiling starts. Traces will be saved to: /tmp (with profile id: 1)"
DONE = "Profiling done. Traces are saved to: /tmp"


@pytest.mark.parametrize(
    ("lines", "runs"),
    [
        ([], False),
        ([line("Decode batch. #running-req: 1")], False),
        ([line(START)], True),
        ([line(START), line(DONE)], False),
        ([line(START), line(DONE), line(START)], True),
        ([line(START), line("Stop profiling...")], True),
        ([line(START), line(START, " PP1"), line(DONE)], True),
        ([line(START, " PP0 TP0"), line(START, " PP0 TP1"), line(DONE, " PP0 TP0"), line(DONE, " PP0 TP1")], False),
        ([line(START, " DP0 PP0"), line(START, " DP1 PP0"), line(DONE, " DP0 PP0")], True),
        ([line("Profiling starts for DECODE. Traces will be saved to: /tmp")], True),
        ([line(START, ""), line("Profiling is already in progress. Call /stop_profile first.", "")], True),
        ([line(START, ago_s=3600.0), line("server_args=ServerArgs(model_path='m')", "")], False),
        ([line("server_args=ServerArgs(model_path='m')", ""), line(START)], True),
        (["10%|#" + line(START), "2 of 8\r" + line(DONE)], False),
        ([line("Profiling starts for graph capture for NPU. Traces will be saved to: /tmp")], False),
        ([f"a prompt that says {START}"], False),
    ],
)
def test_the_log_tells_of_a_profile_that_runs(lines: list[str], runs: bool, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("".join(f"{text}\n" for text in lines))
    with log.open("a") as file, subprocess.Popen(["sleep", "60"], stderr=file) as launcher:
        try:
            if not runs:
                check_log(launcher.pid, (0, 5, 11))
            else:
                with pytest.raises(Unfit, match="Profiling starts"):
                    check_log(launcher.pid, (0, 5, 11))
        finally:
            launcher.kill()


@pytest.mark.parametrize(
    ("version", "believed"), [((0, 5, 11), True), (None, True), ((0, 5, 15), False), ((0, 5, 23), False)]
)
def test_a_start_without_an_end_is_not_believed_for_ever_where_a_second_one_kills_nobody(
    version: tuple[int, ...] | None, believed: bool, tmp_path: Path
) -> None:
    """From 0.5.15 on a start that failed is logged like one that did not, and has no end."""
    log = tmp_path / "server.log"
    with log.open("a") as file, subprocess.Popen(["sleep", "60"], stderr=file) as launcher:
        try:
            for ago_s, held_back in ((660.0, believed), (60.0, True)):
                log.write_text(f"{line(START, ago_s=ago_s)}\n{line('Decode batch. #running-req: 1')}\n")
                if held_back:
                    with pytest.raises(Unfit, match="Profiling starts"):
                        check_log(launcher.pid, version)
                else:
                    check_log(launcher.pid, version)
        finally:
            launcher.kill()


def test_a_server_whose_log_tells_of_a_profile_is_not_asked(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(line(START) + "\n")
    with log.open("a") as file, subprocess.Popen(["sleep", "60"], stderr=file) as launcher:
        profiler, told = FakeProfiler(), Told()
        finished(burst(profiler, told, launcher.pid))
        launcher.kill()
    assert told.states[-1].state == "failed"
    assert "a profile runs at this server already" in told.states[-1].message
    assert "/stop_profile" in told.states[-1].remedy
    assert profiler.asked == []
