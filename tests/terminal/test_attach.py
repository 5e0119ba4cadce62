"""The real command in a pty against the emulator: the picture, the keys, bad input, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ppscope import emulator
from ppscope.snapshot.files import write_private
from ppscope.snapshot.save import render
from tests.fake_nvml import fake_nvml_env
from tests.kineto import Pipeline
from tests.recordings import recording
from tests.terminal.faults_tools import live, ranks_of, stage_lines, take_successor
from tests.terminal.terminal import PPSCOPE, Terminal, all_gone

all_stages_live = live(8)


@pytest.fixture(scope="module")
def server() -> Iterator[emulator.EmulatedServer]:
    with emulator.start("serial", 8) as running:
        yield running


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The command without a terminal."""
    return subprocess.run(
        [str(PPSCOPE), *arguments], capture_output=True, text=True, timeout=30, check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, **(env or {})},
    )  # fmt: skip


def test_the_demo_shows_eight_live_stages_and_leaves_nothing() -> None:
    with Terminal([str(PPSCOPE), "demo"]) as terminal:
        text = terminal.wait_for(all_stages_live)
        assert "Kimi-K2" in text
        assert "emulated" in text
        assert re.search(r"8\d/600 W", text)
        everything = terminal.descendants()
        assert len(everything) >= 10
        terminal.send("q")
        assert terminal.wait() == 0
        assert all_gone(everything) == []
        assert terminal.raw.rstrip().endswith(b"\x1b[?25h") or b"\x1b[?1049l" in terminal.raw[-400:]


def test_attach_to_any_process_of_the_server(server: emulator.EmulatedServer) -> None:
    stage = next(p.pid for p in psutil.Process(server.pid).children() if "scheduler_PP5" in "".join(p.cmdline()))
    with Terminal([str(PPSCOPE), "attach", str(stage)]) as terminal:
        terminal.wait_for(all_stages_live)
        assert f"pid {server.pid}" in terminal.text
        terminal.send("q")
        assert terminal.wait() == 0


def test_keys_answer_while_sources_hang(tmp_path: Path) -> None:
    """A `/server_info` that never answers and a py-spy that never ends."""
    slow = tmp_path / "py-spy"
    slow.write_text("#!/bin/sh\ntrap '' INT TERM\nwhile :; do sleep 1; done\n")
    slow.chmod(0o755)
    with (
        emulator.start("serial", 4, extra=("--hang-http", "/server_info")) as hanging,
        Terminal([str(PPSCOPE), "attach", str(hanging.pid)], env={"PPSCOPE_PYSPY": str(slow)}) as terminal,
    ):
        terminal.wait_for("PP3")
        terminal.send("5")
        terminal.wait_for("attention_backend")
        terminal.send("?")
        terminal.wait_for("command palette")
        terminal.send("\x1b")
        terminal.wait_for(lambda text: "command palette" not in text and "py-spy" in text, timeout_s=20)
        everything = terminal.descendants()
        terminal.send("q")
        assert terminal.wait() == 0
        assert all_gone(everything) == []


@pytest.mark.parametrize(
    ("scenario", "said"),
    [
        ("hang", r"NVML has (been starting|not answered) for \d+ s"),
        ("mismatch", r"differ in version.*(reboot the node|reload)"),
    ],
)
def test_nvml_that_never_returns_or_fails_costs_the_gpu_panel_alone(scenario: str, said: str) -> None:
    with emulator.start("serial", 2, extra=("--no-gpus",)) as bare:
        environment = fake_nvml_env(scenario)
        with Terminal([str(PPSCOPE), "attach", str(bare.pid)], columns=200, env=environment) as terminal:
            terminal.wait_for(lambda text: bool(re.search(said, text)))
            terminal.wait_for(live(2))  # the stacks go on
            everything = terminal.descendants()
            terminal.send("q")
            assert terminal.wait() == 0
            assert all_gone(everything) == []


def test_the_target_ending_is_said_and_a_successor_offered() -> None:
    with emulator.start("serial", 2) as first, Terminal([str(PPSCOPE), "attach", str(first.pid)]) as terminal:
        terminal.wait_for(lambda text: len(stage_lines(text)) == 2)
        os.kill(first.pid, signal.SIGKILL)
        terminal.wait_for("gone")
        with emulator.start("healthy", 3) as second:
            terminal.wait_for(str(second.pid), timeout_s=20)
            take_successor(terminal)
            terminal.wait_for(lambda text: f"pid {second.pid}" in text and len(stage_lines(text)) == 3, timeout_s=20)
            terminal.send("q")
            assert terminal.wait() == 0


def test_a_dead_stage_turns_grey_and_is_named() -> None:
    with (
        emulator.start("serial", 4, extra=("--kill-stage-after", "4:2")) as server,
        Terminal([str(PPSCOPE), "attach", str(server.pid)]) as terminal,
    ):
        terminal.wait_for(lambda text: len(stage_lines(text)) == 4)
        (victim,) = (p.pid for p in ranks_of(server.pid) if "scheduler_PP2" in "".join(p.cmdline()))

        def only_it_is_grey(text: str) -> bool:
            ended = [line for line in stage_lines(text) if "✖" in line]
            return len(ended) == 1 and "PP2" in ended[0] and f"pid {victim}" in ended[0]

        terminal.wait_for(only_it_is_grey, timeout_s=20)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_however_the_view_ends_nothing_of_it_stays(server: emulator.EmulatedServer, number: signal.Signals) -> None:
    with Terminal([str(PPSCOPE), "attach", str(server.pid)]) as terminal:
        terminal.wait_for(all_stages_live)
        everything = terminal.descendants()
        assert len(everything) >= 3
        terminal.process.send_signal(number)
        code = terminal.wait()
        assert code == (-number if number == signal.SIGKILL else 128 + number)
        assert number == signal.SIGKILL or terminal.restored
        assert all_gone(everything) == []
    stats = [psutil.Process(p.pid).status() for p in psutil.Process(server.pid).children(recursive=True)]
    assert psutil.STATUS_STOPPED not in stats
    assert psutil.STATUS_TRACING_STOP not in stats


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_the_screen_ends_the_collector_too(
    server: emulator.EmulatedServer, number: signal.Signals
) -> None:
    with Terminal([str(PPSCOPE), "attach", str(server.pid)]) as terminal:
        deadline = time.monotonic() + 20
        while not (everything := terminal.descendants()):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        terminal.process.send_signal(number)
        assert terminal.wait() == 128 + number
        assert terminal.restored
        assert all_gone(everything) == []
        assert (f"ended by {number.name}" in terminal.text) == (number != signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("command", [("open", "page.html"), ("trace", "")])
def test_a_signal_ends_the_screen_of_a_file_too(
    tmp_path: Path, command: tuple[str, str], number: signal.Signals
) -> None:
    write_private(tmp_path / "page.html", render(recording(4, 2)))
    Pipeline([1_000_000] * 2, slots=2).build().write(tmp_path)
    with Terminal([str(PPSCOPE), command[0], str(tmp_path / command[1])]) as terminal:
        terminal.wait_for("PP1")
        terminal.process.send_signal(number)
        assert terminal.wait() == 128 + number
        assert terminal.restored
        assert (f"ended by {number.name}" in terminal.text) == (number != signal.SIGINT)


def test_the_collector_killed_under_the_view_is_said(server: emulator.EmulatedServer) -> None:
    with Terminal([str(PPSCOPE), "attach", str(server.pid)]) as terminal:
        terminal.wait_for(all_stages_live)
        everything = terminal.descendants()
        collector = next(p for p in everything if "ppscope.collect.collector" in " ".join(p.cmdline()))
        collector.kill()
        terminal.wait_for(f"`ppscope attach {server.pid}` begins anew")
        assert "killed by SIGKILL" in terminal.text
        assert "no other server" not in terminal.text
        terminal.send("a")
        terminal.wait_for(lambda text: text.count("begins anew") == 2)
        terminal.send("q")
        terminal.wait()
        assert all_gone(everything) == []


def test_sizes_and_colours(server: emulator.EmulatedServer) -> None:
    command = [str(PPSCOPE), "attach", str(server.pid), "--ascii"]
    with Terminal(command, columns=80, lines=24, env={"NO_COLOR": "1", "TERM": "xterm"}) as terminal:
        text = terminal.wait_for(lambda text: len(stage_lines(text)) == 8)
        assert text.isascii()
        terminal.resize(40, 10)
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.wait_for("too small")
        terminal.resize(160, 50)
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.wait_for(lambda text: len(stage_lines(text)) == 8 and "too small" not in text)
        terminal.send("q")
        assert terminal.wait() == 0


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in result.stderr.splitlines() if not line.startswith("  try: ")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    return lines[0]


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_bad_input_without_a_terminal(server: emulator.EmulatedServer) -> None:
    result = run("attach", str(server.pid))
    assert result.returncode == 2
    assert "not a terminal" in one_line(result)


@pytest.mark.parametrize("kind", ["dumb", ""])
@pytest.mark.parametrize("command", [("attach",), ("demo",)])
def test_a_terminal_that_cannot_move_its_cursor_is_one_clear_line(kind: str, command: tuple[str, ...]) -> None:
    with Terminal([str(PPSCOPE), *command], env={"TERM": kind}) as terminal:
        assert terminal.wait() == 2
        assert re.match(r"ppscope: TERM is (dumb|not set)", terminal.text)
        assert b"\x1b" not in terminal.raw


@pytest.mark.parametrize(
    ("make", "code", "said"),
    [
        (lambda: ["0"], 2, "whole number from 1 up"),
        (lambda: ["x"], 2, "whole number from 1 up"),
        (lambda: [str(dead_pid())], 3, "no process"),
    ],
)
def test_bad_input_in_a_terminal(make: object, code: int, said: str) -> None:
    assert callable(make)
    started = time.monotonic()
    with Terminal([str(PPSCOPE), "attach", *make()]) as terminal:
        assert terminal.wait() == code
        assert re.search(said, terminal.text), terminal.text
        assert "Traceback" not in terminal.text
    assert time.monotonic() - started < 20


def test_a_program_that_is_python_but_not_sglang() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        with Terminal([str(PPSCOPE), "attach", str(process.pid)]) as terminal:
            assert terminal.wait() == 3
            assert "is Python but runs no SGLang server" in terminal.text
    finally:
        process.kill()
        process.wait()


def test_py_spy_missing_is_one_note_and_the_rest_goes_on(server: emulator.EmulatedServer) -> None:
    with Terminal([str(PPSCOPE), "attach", str(server.pid)], env={"PPSCOPE_PYSPY": "/nowhere/py-spy"}) as terminal:
        terminal.wait_for(lambda text: "py-spy" in text and re.search(r"8\d/600 W", text) is not None)
        terminal.send("q")
        assert terminal.wait() == 0
