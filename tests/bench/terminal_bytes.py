"""Bytes per second that the screen sends to the terminal in a steady view, on a deterministic feed in real time.

Run by hand: `python -P -m tests.bench.terminal_bytes [--seconds 20]` from the repository root (with it on PYTHONPATH).
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import struct
import sys
import termios
import time

CASES: dict[str, dict[str, object]] = {
    "serial PP8, 2 Hz": {},
    "healthy PP8, 2 Hz": {"serial": False},
    "serial PP8, 4 Hz": {"hz": 4.0},
    "serial PP8, single spans": {"keys": "++++"},
    "serial PP8, stacks open": {"keys": "3"},
    "PP8×TP2 with GPU lanes": {"tp": 2, "gpu_lanes": True},
    "serial PP8, 16 colours": {"env": {"TEXTUAL_COLOR_SYSTEM": "standard"}},
}
BUDGET = 8_000


def child(case: dict[str, object]) -> None:
    """Run the screen in this process until it is told to quit."""
    from ppscope.app import PpscopeApp
    from tests.fake_feed import FakeFeed

    start = time.monotonic_ns()
    feed = FakeFeed(
        tp=int(str(case.get("tp", 1))),
        serial=bool(case.get("serial", True)),
        gpu_lanes=bool(case.get("gpu_lanes", False)),
        clock=lambda: 1_030_000_000_000 + time.monotonic_ns() - start,
        windows=True,
    )
    PpscopeApp(feed, refresh_hz=float(str(case.get("hz", 2.0)))).run()


def measure(case: dict[str, object], columns: int, rows: int, warm_s: float, seconds: float) -> tuple[float, float]:
    """Bytes per second after the warm-up, and CPU seconds per second of the child."""
    pid, master = pty.fork()
    if pid == 0:
        environment = {"TERM": "xterm-256color", "COLORTERM": "truecolor", **dict(case.get("env", {}))}  # type: ignore[call-overload]
        os.environ.update(environment)
        os.execv(sys.executable, [sys.executable, "-m", "tests.bench.terminal_bytes", "--child", json.dumps(case)])
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    _drain(master, warm_s)
    os.write(master, str(case.get("keys", "")).encode())
    _drain(master, 2.0)
    cpu = _cpu_s(pid)
    total = _drain(master, seconds)
    cpu = _cpu_s(pid) - cpu
    os.write(master, b"q")
    _drain(master, 1.0)
    os.waitpid(pid, 0)
    os.close(master)
    return total / seconds, cpu / seconds


def _drain(master: int, seconds: float) -> int:
    end = time.monotonic() + seconds
    total = 0
    while (left := end - time.monotonic()) > 0:
        if select.select([master], [], [], left)[0]:
            try:
                total += len(os.read(master, 65536))
            except OSError:
                break
    return total


def _cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Print a row per case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--child")
    arguments = parser.parse_args()
    if arguments.child:
        child(json.loads(arguments.child))
        return
    sys.stdout.write(f"{'case':32} {'kB/s':>7} {'of budget':>10} {'cores':>7}\n")
    for name, case in CASES.items():
        if arguments.only in name:
            rate, cpu = measure(case, 160, 50, 4.0, arguments.seconds)
            sys.stdout.write(f"{name:32} {rate / 1000:7.2f} {rate / BUDGET:10.2f} {cpu:7.3f}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
