"""Faults of the worst night, in the real command: what the user sees, and that nothing is left running or stopped."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from ppscope import emulator, exits
from ppscope.collect.client import RecordedStream
from ppscope.collect.stream import StreamError
from ppscope.records import BatchLog
from ppscope.signals import exit_code
from ppscope.sources.stacks_pyspy import find_pyspy
from tests.footprint import Footprint, footprints
from tests.terminal.faults_tools import (
    STAGES,
    attach,
    collector_of,
    drawn,
    leave,
    live,
    pyspies,
    ranks_of,
    take_successor,
)
from tests.terminal.terminal import PPSCOPE, Terminal, all_gone


@pytest.fixture(scope="module")
def server() -> Iterator[emulator.EmulatedServer]:
    with emulator.start("serial", STAGES) as running:
        yield running


@pytest.mark.parametrize("way", ["q", "killed"])
def test_nothing_can_be_seen_in_the_target_after_we_left(
    server: emulator.EmulatedServer, tmp_path: Path, way: str
) -> None:
    """Nor on the disk: the folder for temporary files is as empty as before."""
    before = footprints(server.pid)
    with Terminal([str(PPSCOPE), "attach", str(server.pid)], env={"TMPDIR": str(tmp_path)}) as terminal:
        terminal.wait_for(live())
        assert all(seen.tracer == 0 and not seen.stopped for seen in footprints(server.pid).values())
        if way == "q":
            leave(terminal)
        else:
            everything = terminal.descendants()
            terminal.process.kill()
            assert all_gone(everything) == []

    def left() -> list[tuple[Footprint, Footprint]]:
        """The server's own request threads come and go; a scheduler's do not."""
        after = footprints(server.pid)
        after[server.pid] = after[server.pid]._replace(threads=before[server.pid].threads)
        return [(before[pid], seen) for pid, seen in after.items() if seen != before[pid]]

    deadline = time.monotonic() + 10
    while left() and time.monotonic() < deadline:
        time.sleep(0.1)  # its end of a request that was cut
    assert left() == []
    assert list(tmp_path.iterdir()) == []


LISTENING = """
    import os, signal
    def heard(number, _):
        log = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, b"%d %d\\n" % (os.getpid(), number))
        os.close(log)
    for number in set(range(1, signal.NSIG)) - {{signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGPIPE}}:
        try:
            signal.signal(number, heard)
        except (OSError, ValueError):
            pass
"""
"""Loaded by every process of a server: it writes down which signals come."""


def test_no_signal_reaches_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither while it is looked at, nor when we leave, nor when we are killed."""
    log = tmp_path / "signals"
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(LISTENING.format(log=str(log))))
    with monkeypatch.context() as only_there:
        only_there.setenv("PYTHONPATH", str(tmp_path))
        only_there.setenv("PPSCOPE_PROBE", "1")  # with it the emulated server keeps that path
        listening = emulator.start("serial", STAGES)
    with listening:
        with attach(listening.pid) as terminal:
            terminal.wait_for(live())
            leave(terminal)
        with attach(listening.pid) as terminal:
            terminal.wait_for(live())
            everything = terminal.descendants()
            terminal.process.kill()
            terminal.wait()
            assert all_gone(everything) == []
        for command in (("check", "--seconds", "2"), ("doctor",)):
            done = subprocess.run(
                [str(PPSCOPE), command[0], str(listening.pid), *command[1:]],
                capture_output=True,
                timeout=60,
                check=False,
            )
            assert done.returncode in (0, 1), done.stderr
        assert not log.exists(), log.read_text()
        processes = [psutil.Process(listening.pid), *ranks_of(listening.pid)]
        for process in processes:
            process.send_signal(signal.SIGWINCH)
        deadline = time.monotonic() + 20
        while not log.exists() or len(log.read_text().splitlines()) < len(processes):
            assert time.monotonic() < deadline, "each of them would have said so"
            time.sleep(0.05)


def test_a_stage_that_somebody_stopped_is_said_and_was_not_us(server: emulator.EmulatedServer) -> None:
    victim = next(p for p in ranks_of(server.pid) if "PP1" in "".join(p.cmdline()))
    with Terminal([str(PPSCOPE), "attach", str(server.pid)], columns=200) as terminal:
        terminal.wait_for(live())
        victim.suspend()
        try:
            terminal.wait_for(f"▲ stopped, pid {victim.pid}")
            assert "ppscope sends its target no signals" in terminal.text
            assert f"kill -CONT {victim.pid} " in terminal.text
        finally:
            victim.resume()
        terminal.wait_for(lambda text: "stopped" not in text)
        leave(terminal)
    assert victim.status() != psutil.STATUS_STOPPED


def test_somebody_elses_py_spy_in_a_loop_is_no_stopped_stage(server: emulator.EmulatedServer) -> None:
    """A script that dumps every stage again and again, stopping it for milliseconds, as people do who hunt a hang."""
    binary = find_pyspy()
    assert binary is not None
    with attach(server.pid) as terminal:
        terminal.wait_for(live())
        filled, seen = drawn(terminal.text), 0
        while drawn(terminal.text) <= filled + 3 * STAGES or seen < 10:
            for rank in ranks_of(server.pid):
                subprocess.run([binary, "dump", "-p", str(rank.pid)], capture_output=True, timeout=30, check=False)
                assert "▲ stopped" not in terminal.text
                seen += 1
        leave(terminal)
    assert {p.status() for p in ranks_of(server.pid)}.isdisjoint({psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP})


def test_a_server_that_restarts_is_gone_and_its_successor_one_key_away() -> None:
    with (
        emulator.start("serial", 2, extra=("--restart-after", "4")) as restarting,
        attach(restarting.pid) as terminal,
    ):
        terminal.wait_for(live(2))
        terminal.wait_for("gone", timeout_s=30)
        restarting.wait_for("ready")
        terminal.wait_for(f"attach to {restarting.pid}", timeout_s=30)
        take_successor(terminal)
        terminal.wait_for(
            lambda text: f"pid {restarting.pid}" in text and "the server is gone" not in text, timeout_s=20
        )
        terminal.wait_for(live(2), timeout_s=30)
        leave(terminal)


def test_py_spy_killed_again_and_again_is_started_again(server: emulator.EmulatedServer) -> None:
    with attach(server.pid) as terminal:
        terminal.wait_for(live())
        killed = 0
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:
            for process in pyspies(terminal):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
                    killed += 1
            time.sleep(0.05)
        assert killed >= STAGES
        terminal.wait_for("killed by SIGKILL")
        filled = drawn(terminal.text)
        terminal.wait_for(lambda text: drawn(text) > filled + 3 * STAGES and "killed by" not in text, timeout_s=30)
        leave(terminal)
    assert all(p.status() != psutil.STATUS_STOPPED for p in ranks_of(server.pid))


def test_a_stopped_collector_is_said_and_q_still_works(server: emulator.EmulatedServer) -> None:
    with attach(server.pid) as terminal:
        terminal.wait_for(live())
        everything = terminal.descendants()
        collector_of(terminal).suspend()
        terminal.wait_for("nothing has come from it", timeout_s=30)
        terminal.send("?")
        terminal.wait_for("command palette")
        terminal.send("\x1b")
        terminal.wait_for(lambda text: "command palette" not in text)
        terminal.send("q")
        assert terminal.wait(5) == 0
        assert all_gone(everything) == []


def back_to_the_shell(terminal: Terminal, everything: list[psutil.Process]) -> None:
    """Quit below a shell, and leave that as well."""
    terminal.send("q")
    assert all_gone(everything) == []
    terminal.send("\recho code=$?\r")
    terminal.wait_for("code=0")
    terminal.send("exit\r")
    terminal.wait()


@pytest.mark.parametrize("wrapper", ["", "make -f {file} view"])
def test_suspended_and_brought_back_the_picture_goes_on(
    server: emulator.EmulatedServer, tmp_path: Path, wrapper: str
) -> None:
    """Also below `make`, which has to stop as well: else the shell never takes the terminal back."""
    command = f"{PPSCOPE} attach {server.pid}"
    (tmp_path / "makefile").write_text(f"view:\n\t@{command}\n")
    with Terminal([shutil.which("bash") or "sh", "--norc", "-i"], env={"PS1": "$ "}) as terminal:
        terminal.wait_for("$ ")
        terminal.send(f"{wrapper.format(file=tmp_path / 'makefile') or command}\r")
        terminal.wait_for(live())
        everything = terminal.descendants()
        terminal.send("\x1a")
        terminal.wait_for("Stopped")
        assert {p.status() for p in ranks_of(server.pid)}.isdisjoint({psutil.STATUS_STOPPED})
        filled = drawn(terminal.text)
        terminal.send("clear\r")
        terminal.wait_for(lambda text: "Stopped" not in text)
        time.sleep(2.0)
        terminal.send("fg\r")
        text = terminal.wait_for(lambda text: live()(text) and drawn(text) > filled + 3 * STAGES)
        for still in ("ppscope  ", "stage ", "1 findings", "q quit"):
            assert still in text
        back_to_the_shell(terminal, everything)


@pytest.mark.parametrize("way", ["running", "bg"])
def test_told_to_go_on_at_any_time_the_view_takes_keys_and_gives_the_terminal_back(
    server: emulator.EmulatedServer, way: str
) -> None:
    """SIGCONT reaches a view that runs, and one in the background, which may not draw."""
    with Terminal([shutil.which("bash") or "sh", "--norc", "-i"], env={"PS1": "$ "}) as terminal:
        terminal.wait_for("$ ")
        terminal.send(f"{PPSCOPE} attach {server.pid}\r")
        terminal.wait_for(live())
        everything = terminal.descendants()
        view = next(process for process in everything if "attach" in process.cmdline())
        if way == "bg":
            terminal.send("\x1a")
            terminal.wait_for("Stopped")
            for _ in range(2):
                terminal.send("bg\r")
                deadline = time.monotonic() + 20
                while view.status() != psutil.STATUS_STOPPED:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
                time.sleep(0.5)
            terminal.send("fg\r")
            terminal.wait_for(live())
        for _ in range(3):
            view.send_signal(signal.SIGCONT)
            time.sleep(0.2)
        terminal.send("?")
        terminal.wait_for("command palette")
        terminal.send("\x1b")
        terminal.wait_for(lambda text: "command palette" not in text)
        back_to_the_shell(terminal, everything)
        assert terminal.restored


@pytest.mark.parametrize("command", ["attach", "check", "record", "snapshot"])
def test_a_cut_connection_ends_everything(server: emulator.EmulatedServer, tmp_path: Path, command: str) -> None:
    """What sshd does when the network is gone: the master side of the terminal is closed."""
    output = tmp_path / ("run.pps" if command == "record" else "page.html")
    more = {"attach": [], "check": ["--seconds", "60"], "record": ["-o", str(output)]}
    words = more.get(command, ["-o", str(output), "--seconds", "60"])
    terminal = Terminal([str(PPSCOPE), command, str(server.pid), *words])
    try:
        if command == "attach":
            terminal.wait_for(live())
        deadline = time.monotonic() + 30
        while len(pyspies(terminal)) < STAGES:
            assert time.monotonic() < deadline, terminal.text
            time.sleep(0.02)
        everything = terminal.descendants()
        terminal.cut()
        # 3: the path of the recording could not be printed any more.
        assert terminal.process.wait(20) in (0, exit_code(signal.SIGHUP), exits.CANNOT_ATTACH)
        assert all_gone(everything) == []
    finally:
        terminal.close()
    left = list(tmp_path.iterdir())
    if command != "record":
        assert left == [], "no half page"
    elif left:
        assert RecordedStream.open(output).drain()


@pytest.mark.parametrize("command", ["attach", "demo --pp 2"])
def test_a_view_ends_without_its_terminal_also_where_the_hangup_is_ignored(
    server: emulator.EmulatedServer, command: str
) -> None:
    """As below nohup, or in a session that was started by something that ignores it: else it would take a core for ever."""
    words = f"{PPSCOPE} {command} {server.pid if command == 'attach' else ''}"
    terminal = Terminal(["sh", "-c", f"trap '' HUP; exec {words}"])
    try:
        terminal.wait_for(live(STAGES if command == "attach" else 2))
        everything = terminal.descendants()
        terminal.cut()
        assert terminal.process.wait(30) == exit_code(signal.SIGHUP)
        assert all_gone(everything) == []
    finally:
        terminal.close()


def test_two_views_of_one_server_do_not_disturb_each_other(server: emulator.EmulatedServer) -> None:
    with attach(server.pid) as first, attach(server.pid) as second:
        first.wait_for(live())
        second.wait_for(live())
        leave(first)
        filled = drawn(second.text)
        second.wait_for(lambda text: drawn(text) > filled + 3)
        assert "▲ stacks" not in second.text
        leave(second)


def test_a_log_that_grows_by_gigabytes_costs_nothing(server: emulator.EmulatedServer, tmp_path: Path) -> None:
    """Its lines are read on behind what was passed over."""
    log, output = Path(server.folder) / "server.log", tmp_path / "run.pps"
    command = [str(PPSCOPE), "record", str(server.pid), "-o", str(output), "--seconds", "60"]
    with Terminal(command) as terminal:
        terminal.wait_for("recording")
        until(lambda: collectors(terminal))
        (collector,) = collectors(terminal)
        until(lambda: output.exists() and lines_of(output))
        for _ in range(20):
            with log.open("r+b") as file:
                file.truncate(log.stat().st_size + (100 << 20))  # sparse: 1 GB/s without the disk
            time.sleep(0.1)
        grown_ns = time.monotonic_ns()
        until(lambda: any(line.at_ns > grown_ns for line in lines_of(output)))
        assert collector.memory_info().rss < 200 << 20
        terminal.send("\x03")
        terminal.wait()


def lines_of(recording: Path) -> list[BatchLog]:
    """The server's log lines of a recording that is being written."""
    try:
        return [record for record in RecordedStream.open(recording).drain() if isinstance(record, BatchLog)]
    except StreamError:
        return []


def collectors(terminal: Terminal) -> list[psutil.Process]:
    return [p for p in terminal.descendants() if "ppscope.collect.collector" in " ".join(p.cmdline())]


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 40
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.1)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if os.geteuid() != 0 or mounted.returncode != 0:
        pytest.skip("a small disk can only be mounted as root")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=False)


def test_a_full_disk_costs_the_snapshot_alone(server: emulator.EmulatedServer, tiny_disk: Path) -> None:
    """The command says it in one line, the view in its last, and goes on; no half page stays."""
    (tiny_disk / "filler").write_bytes(b"x" * (44 << 10))
    output = tiny_disk / "page.html"
    done = subprocess.run(
        [str(PPSCOPE), "snapshot", str(server.pid), "-o", str(output), "--seconds", "2"],
        capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert sum("No space left on device" in line for line in done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr
    with Terminal([str(PPSCOPE), "attach", str(server.pid)], env={"PPSCOPE_SNAPSHOT_DIR": str(tiny_disk)}) as terminal:
        terminal.wait_for(live())
        terminal.send("s")
        terminal.wait_for("no snapshot: No space left on device")
        filled = drawn(terminal.text)
        terminal.wait_for(lambda text: drawn(text) > filled + STAGES)
        leave(terminal)
    assert [path.name for path in tiny_disk.iterdir()] == ["filler"]


def test_a_full_disk_ends_a_recording_in_one_line(server: emulator.EmulatedServer, tiny_disk: Path) -> None:
    """What was written until then stays and can be opened."""
    done = subprocess.run(
        [str(PPSCOPE), "record", str(server.pid), "-o", str(tiny_disk / "run.pps"), "--seconds", "30"],
        capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    complaints = [line for line in done.stderr.splitlines() if "recording" not in line]
    assert len(complaints) == 1, done.stderr
    assert "No space left on device" in complaints[0]
    ranks = {str(p.pid) for p in ranks_of(server.pid)}
    left = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # somebody else's may end meanwhile
            if process.name() == "py-spy" and ranks & set(process.cmdline()):
                left.append(process)
    assert left == []
    assert len(RecordedStream.open(tiny_disk / "run.pps").drain()) > 3
