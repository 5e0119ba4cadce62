"""ppscope and its peers as commands for one target: how each is started, watched and asked."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from ppscope.emulator import EmulatedServer
from tests.bench.pty import TimedTerminal
from tests.fake_nvml import fake_nvml_env
from tests.terminal.terminal import PPSCOPE

RATE_HZ = 50
PYSPY = str(Path(sys.executable).with_name("py-spy"))


@dataclass
class Peer:
    """A program with a screen. `first` is in its first frame, `keys` are keys with the text that answers each."""

    command: list[str]
    first: bytes
    keys: tuple[tuple[str, bytes], ...]
    leave: str = "q"
    env: Mapping[str, str] = field(default_factory=dict)


def schedulers(launcher: int) -> list[int]:
    """Pids of a server's schedulers, the first stage first."""
    found = [
        ("".join(child.cmdline()), child.pid)
        for child in psutil.Process(launcher).children()
        if "sglang::scheduler" in "".join(child.cmdline())
    ]
    return [pid for _, pid in sorted(found)]


_CURSOR = "▸".encode()
_CURSOR_KEYS = (("j", _CURSOR), ("k", _CURSOR))


def ppscope(server: int, *flags: str) -> Peer:
    """The live view; the cursor moves with j and k."""
    return Peer([str(PPSCOPE), "attach", str(server), *flags], b"PP7", _CURSOR_KEYS)


def undeterred(server: int) -> Peer:
    """The live view as on a node where many cores are idle: it does not give way."""
    code = (
        "import sys; from ppscope.commands.live import attach;"
        f" sys.exit(attach({server}, rate_hz=None, ascii_only=False, gives_way=False))"
    )
    return Peer([sys.executable, "-c", code], b"PP7", _CURSOR_KEYS)


def pyspy_top(pid: int) -> Peer:
    """`py-spy top` of one process; 1 and 3 choose what it sorts by, shown bold."""
    command = [PYSPY, "top", "--nonblocking", "-r", str(RATE_HZ), "-p", str(pid)]
    keys = (("1", b"\x1b[1m\x1b[7m  %Own"), ("3", b"\x1b[1m\x1b[7m  OwnTime"))
    return Peer(command, b"OwnTime", keys, leave="\x03")


def pyspy_record(pid: int, out: Path) -> list[str]:
    """`py-spy record` of one process, the way ppscope runs it but in one piece; it has no screen."""
    return [
        PYSPY, "record", "--nonblocking", "-r", str(RATE_HZ), "-t", "-i", "-f", "chrometrace", "-d", "3600",
        "-o", str(out), "-p", str(pid),
    ]  # fmt: skip


def nvitop(server: EmulatedServer | None) -> Peer | str:
    """nvitop on the emulated GPUs of the fake NVML library; a reason where it cannot run."""
    path = shutil.which("nvitop", path=str(Path(sys.executable).parent)) or shutil.which("nvitop")
    if path is None:
        return "nvitop is not installed here (pip install nvitop)"
    stages = enumerate(schedulers(server.pid)) if server is not None else ()
    try:
        env = fake_nvml_env("healthy", gpus=8, pids=" ".join(f"{gpu}:{pid}" for gpu, pid in stages))
    except pytest.skip.Exception as reason:
        return f"nvitop: {reason}"
    return Peer([path], b"NVITOP", (("h", b"Released"), ("q", b"NVITOP")), env=env)


@contextmanager
def watched(peer: Peer) -> Iterator[list[int]]:
    """A peer with a screen, in a terminal; gives its pid."""
    with TimedTerminal(peer.command, peer.env) as terminal:
        yield [terminal.process.pid]
        terminal.leave(peer.leave)


@contextmanager
def looping(cores: float) -> Iterator[list[int]]:
    """A loop that computes for so many cores at idle priority, a fiftieth of a second at a time; gives its pid."""
    code = (
        "import os, sys, time; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\n"
        "while True:\n"
        "    began, until = time.monotonic(), time.thread_time() + 0.02 * float(sys.argv[1])\n"
        "    while time.thread_time() < until: pass\n"
        "    time.sleep(max(0.0, 0.02 - (time.monotonic() - began)))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(cores)]) as process:
        try:
            yield [process.pid]
        finally:
            process.kill()


@contextmanager
def recorded(stages: list[int]) -> Iterator[list[int]]:
    """One `py-spy record` a stage; gives their pids."""
    with tempfile.TemporaryDirectory(prefix="ppscope-bench-") as folder:
        started = [
            subprocess.Popen(
                pyspy_record(pid, Path(folder) / f"{pid}.json"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            for pid in stages
        ]
        try:
            yield [process.pid for process in started]
        finally:
            for process in started:
                process.terminate()
                process.wait()


@contextmanager
def topped(stages: list[int]) -> Iterator[list[int]]:
    """One `py-spy top` a stage; gives their pids."""
    with ExitStack() as stack:
        yield [pid for stage in stages for pid in stack.enter_context(watched(pyspy_top(stage)))]
