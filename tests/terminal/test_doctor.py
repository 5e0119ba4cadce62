"""`ppscope doctor` against the emulator, with and without rights, and what a refused attach says."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ppscope import emulator
from tests.fake_nvml import fake_nvml_env
from tests.terminal.terminal import PPSCOPE, Terminal

SETPRIV = shutil.which("setpriv")
WITHOUT_PTRACE = [str(SETPRIV), "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"]
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or SETPRIV is None, reason="needs root and setpriv to drop a capability"
)


@pytest.fixture(scope="module")
def server() -> Iterator[emulator.EmulatedServer]:
    with emulator.start("serial", 2) as running:
        yield running


def doctor(
    *arguments: str, before: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> tuple[int, dict[str, dict[str, str]]]:
    done = subprocess.run(
        [*before, str(PPSCOPE), "doctor", "--json", *arguments], capture_output=True, text=True, timeout=30, check=False,
        stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})},
    )  # fmt: skip
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert document["schema"] == "ppscope.doctor/1"
    return done.returncode, {check["id"]: check for check in document["checks"]}


def gone() -> str:
    """The pid of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return str(process.pid)


def test_a_server_of_our_own_is_well(server: emulator.EmulatedServer) -> None:
    code, checks = doctor(str(server.pid))
    assert code == 0, checks
    wanted = (
        "target.memory",
        "target.user",
        "pyspy.present",
        "pyspy.python",
        "http.port",
        "http.metrics",
        "log",
        "trace.folder",
    )
    assert {name: checks[name]["state"] for name in wanted} == dict.fromkeys(wanted, "ok")
    assert "emulated" in checks["gpu.nvml"]["what"]


def test_in_a_terminal_the_size_counts(server: emulator.EmulatedServer) -> None:
    with Terminal([str(PPSCOPE), "doctor", str(server.pid)], columns=79, lines=40) as terminal:
        assert terminal.wait(20) == 1
        assert "79×40 is too small" in terminal.text
        assert "1 problem" in terminal.text


@pytest.mark.parametrize(
    ("scenario", "state", "said"),
    [("healthy", "ok", "8 GPUs"), ("mismatch", "problem", "differ in version"), ("mig", "info", "MIG"), ("hang", "problem", "starting"),
     ("missing", "info", "not found")],
)  # fmt: skip
def test_nvml(scenario: str, state: str, said: str) -> None:
    """A library that is well, of another version than its driver, cut into instances, hanging, absent."""
    # Of a pid that is no server: without one, an emulated server on the machine would be found, and NVML not be asked.
    _, checks = doctor(gone(), env=fake_nvml_env(scenario))
    assert (checks["gpu.nvml"]["state"], said in checks["gpu.nvml"]["what"]) == (state, True), checks["gpu.nvml"]
    assert ("gpu.mig" in checks) == (scenario == "mig")


def test_py_spy_missing(server: emulator.EmulatedServer) -> None:
    code, checks = doctor(str(server.pid), env={"PPSCOPE_PYSPY": "/nowhere/py-spy"})
    assert code == 1
    command = shlex.split(checks["pyspy.present"]["remedy"])
    assert command[-2:] == ["install", "py-spy"]
    # The environment's `python` and `python3` are one: which of them started pytest does not matter.
    mine = Path(sys.executable)
    pythons = [Path(word) for word in command if Path(word).name.startswith("python")]
    assert [python.parent for python in pythons] == [mine.parent], "into the environment that ppscope is in"


def test_a_pid_that_is_no_server() -> None:
    code, checks = doctor(gone())
    assert code == 3
    assert checks["target.found"]["state"] == "problem"
    assert "http.port" not in checks


@needs_root
def test_root_without_the_capability(server: emulator.EmulatedServer) -> None:
    """A container without SYS_PTRACE: each check says what it cannot see, none claims that the port is somebody else's."""
    code, checks = doctor(str(server.pid), before=tuple(WITHOUT_PTRACE))
    assert code == 1
    assert checks["ptrace.capability"]["state"] == "problem"
    assert "--cap-add SYS_PTRACE" in checks["ptrace.capability"]["remedy"]
    assert "2 processes does not open" in checks["target.memory"]["what"]
    assert "not listen" not in checks["http.port"]["what"]


@needs_root
def test_a_refused_attach_looks_at_the_locks_itself(server: emulator.EmulatedServer) -> None:
    """Of a real server: the one lock that is closed, with what opens it; nothing where none is."""
    program = (
        f"from ppscope.doctor.gather import refused; print(*(c.id + ' ' + c.remedy for c in refused({server.pid})))"
    )
    for before, wanted in ((WITHOUT_PTRACE, "ptrace.capability docker"), ([], "\n")):
        done = subprocess.run([*before, sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.startswith(wanted), done.stdout
        assert len(done.stdout.splitlines()) == 1


@needs_root
def test_a_view_without_the_capability_says_so_and_shows_the_rest(server: emulator.EmulatedServer) -> None:
    """The GPUs and the load are still there; the stacks are named with what gives them."""
    with Terminal([*WITHOUT_PTRACE, str(PPSCOPE), "attach", str(server.pid)], columns=200) as terminal:
        try:
            terminal.wait_for(lambda text: "--cap-add SYS_PTRACE" in text and "/600 W" in text)
            terminal.send("q")
            assert terminal.wait() == 0
        except AssertionError:
            # A kernel that also hides the environment refuses the attach as a whole.
            assert terminal.wait(20) == 3
            assert "no permission to look into process" in terminal.text
            assert "root here lacks CAP_SYS_PTRACE" in terminal.text
