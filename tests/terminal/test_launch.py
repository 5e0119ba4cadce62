"""`ppscope launch` as a command: codes, signals, the environment; and the exact view of what it launched, whoever gets killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.terminal.terminal import PPSCOPE, Terminal, all_gone

SHM = Path("/dev/shm", f"ppscope-{os.getuid()}")


def launch(*command: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PPSCOPE), "launch", *options, *command], capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("--", "sh", "-c", "exit 0"), 0),
        (("--", "sh", "-c", "exit 42"), 42),
        (("sh", "-c", "exit 3"), 3),
        (("--", "sh", "-c", "kill -TERM $$"), -signal.SIGTERM),
    ],
)
def test_it_ends_as_its_command_ends(command: tuple[str, ...], code: int) -> None:
    done = launch(*command)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_what_cannot_be_run_is_one_line(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    for command, code, line in (
        ("/no/such/command", 127, "ppscope: no such command: /no/such/command\n"),
        (str(plain), 126, f"ppscope: cannot run {plain}: Permission denied\n"),
    ):
        done = launch("--", command)
        assert (done.returncode, done.stdout, done.stderr) == (code, "", line)
    assert launch().returncode == 2
    assert launch("--", options=("--bogus",)).returncode == 2


def test_arguments_and_output_pass_unchanged() -> None:
    script = "import os, sys; print(sys.argv[1:], os.environ['PPSCOPE_PROBE'], os.environ.get('PPSCOPE_GPU_TIMING'))"
    done = launch("--", sys.executable, "-c", script, "--tp", "2", "-h", "--", "ü", options=("--gpu-timing",))
    assert done.stdout == "['--tp', '2', '-h', '--', 'ü'] always 1\n"


def test_a_shell_below_heeds_the_signals_that_python_ignores() -> None:
    """`yes | head` in a start script ends by SIGPIPE, and not with an error of its own."""
    script = "grep SigIgn /proc/self/status; yes | head -1; echo ${PIPESTATUS[0]}"
    plain = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, restore_signals=True)
    done = launch("--", "bash", "-c", script)
    assert (done.stdout, done.stderr) == (plain.stdout, "")
    assert done.stdout.endswith("y\n141\n")


def test_a_signal_reaches_the_command() -> None:
    script = "import signal, sys; signal.signal(signal.SIGINT, lambda *_: sys.exit(9)); print('up', flush=True); signal.pause()"
    with subprocess.Popen(
        [str(PPSCOPE), "launch", "--", sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 9


@contextmanager
def emulated(stages: int = 2) -> Iterator[int]:
    """The launcher's pid of an emulated server with the probe in it."""
    command = [
        str(PPSCOPE),
        "launch",
        "--",
        sys.executable,
        "-m",
        "ppscope.emulator",
        "--pp",
        str(stages),
        "--die-with-parent",
    ]
    with subprocess.Popen(
        [*command, "--scenario", "healthy"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("ready"))
        children = psutil.Process(process.pid).children(recursive=True)
        try:
            yield int(line.split("pid=")[1].split()[0])
        finally:
            process.kill()
            process.wait()
            assert all_gone(children, 10) == []


def rings() -> set[int]:
    return {int(path.name.split("-")[2]) for path in SHM.glob("ring-*")}


def test_attach_is_exact_whoever_was_killed_before() -> None:
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("/dev/shm is not here, and so no probe")
    with emulated() as pid:
        stages = {child.pid for child in psutil.Process(pid).children() if "scheduler_PP" in "".join(child.cmdline())}
        assert stages <= rings()
        with Terminal([str(PPSCOPE), "attach", str(pid)]) as view:
            view.wait_for("exact")
            everything = view.descendants()
            view.process.kill()
            assert all_gone(everything) == []
        with Terminal([str(PPSCOPE), "attach", str(pid)]) as view:
            view.wait_for("exact")
            view.send("q")
            assert view.wait() == 0
    assert stages <= rings(), "killed, so nobody could tidy up"
    with emulated() as pid, Terminal([str(PPSCOPE), "attach", str(pid)]) as view:
        view.wait_for("exact")
        assert not stages & rings(), "the next start did"
        view.send("q")
        assert view.wait() == 0
