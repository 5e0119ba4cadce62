"""What attaching costs and how fast it shows something, measured on this machine.

    python -m tests.bench.attach            start-up, bytes and CPU against the emulator, beside py-spy top and nvitop
    python -m tests.bench.attach --server   and the throughput of the real SGLang (PP 2, CPU) with and without ppscope

Throughput is paired: slices with and without ppscope alternate on one loaded server; the ratio of each pair, their mean and its
95 % confidence interval (bootstrap over pairs) are printed. Also tokens per CPU second of the schedulers, which a noisy box
disturbs less.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import psutil

from ppscope import emulator
from tests.sglang.server import ServerSpec, SglangServer, running
from tests.terminal.terminal import PPSCOPE, Terminal

STAGE = re.compile(r"^[▸> ] +PP\d.*[▁▂▃▄▅▆▇█╌┈░▒▓╎]", re.MULTILINE)
FRAME = re.compile(r"^[▸> ] +PP\d", re.MULTILINE)


def tree_cpu_s(pid: int) -> float:
    """CPU seconds of a process, its living and its reaped descendants."""
    total = 0.0
    try:
        root = psutil.Process(pid)
        members = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    for process in members:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def first_times(command: Sequence[str], stages: int) -> dict[str, float]:
    """Seconds from start to the first frame with stage rows, and to a bar in every row."""
    started = time.monotonic()
    with Terminal(command, columns=160, lines=50) as terminal:
        seen: dict[str, float] = {}
        deadline = started + 20
        while time.monotonic() < deadline and len(seen) < 2:
            text = terminal.text
            if "frame" not in seen and len(FRAME.findall(text)) >= stages:
                seen["frame"] = time.monotonic() - started
            if "gantt" not in seen and len(STAGE.findall(text)) >= stages:
                seen["gantt"] = time.monotonic() - started
            time.sleep(0.01)
        terminal.send("q")
        terminal.wait()
    return seen


def steady(command: Sequence[str], seconds: float, quit_keys: str = "q") -> tuple[float, float]:
    """(bytes a second to the terminal, cores used) of a command once it has settled."""
    with Terminal(command, columns=160, lines=50) as terminal:
        time.sleep(6)
        bytes_before, cpu_before, before = terminal.received, tree_cpu_s(terminal.process.pid), time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - before
        rate, cores = (terminal.received - bytes_before) / took, (tree_cpu_s(terminal.process.pid) - cpu_before) / took
        terminal.send(quit_keys)
        time.sleep(0.3)
    return rate, cores


def beside_peers(seconds: float) -> None:
    """Start-up, bytes and CPU on the emulated eight stages."""
    with emulator.start("serial", 8) as server:
        attach = [str(PPSCOPE), "attach", str(server.pid)]
        runs = [first_times(attach, 8) for _ in range(5)]
        for name in ("frame", "gantt"):
            values = [run[name] for run in runs if name in run]
            print(f"first {name:5}  median {statistics.median(values):.2f} s  of {[round(v, 2) for v in values]}")
        rate, cores = steady(attach, seconds)
        print(f"ppscope attach   {rate / 1000:6.1f} kB/s   {cores:.2f} core")
        stage = next(p.pid for p in psutil.Process(server.pid).children() if "scheduler_PP0" in "".join(p.cmdline()))
        pyspy = Path(sys.executable).with_name("py-spy")
        rate, cores = steady([str(pyspy), "top", "--nonblocking", "-r", "50", "-p", str(stage)], seconds, "q")
        print(f"py-spy top, one  {rate / 1000:6.1f} kB/s   {cores:.2f} core   (one of the eight stages)")
        nvitop = shutil.which("nvitop", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
        if nvitop:
            rate, cores = steady([nvitop], seconds)
            print(f"nvitop           {rate / 1000:6.1f} kB/s   {cores:.2f} core")
        else:
            print("nvitop           not installed here")


def scheduler_cpu_s(server: SglangServer) -> float:
    """CPU seconds of the server's schedulers."""
    total = 0.0
    for child in psutil.Process(server.pid).children():
        if "".join(child.cmdline()).startswith("sglang::scheduler"):
            times = child.cpu_times()
            total += times.user + times.system
    return total


def tokens(server: SglangServer) -> float:
    """Tokens generated so far, by the server's counter."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(
        r'^sglang:realtime_tokens_total\{[^}]*mode="decode"[^}]*pp_rank="0"[^}]*\} (\S+)', text, re.MULTILINE
    )
    found = found or re.findall(r"^sglang:generation_tokens_total\{[^}]*\} (\S+)", text, re.MULTILINE)
    return sum(map(float, found))


def measure_slice(server: SglangServer, seconds: float) -> tuple[float, float]:
    """(tokens a second, tokens per CPU second of the schedulers) over a slice."""
    tokens_before, cpu_before, before = tokens(server), scheduler_cpu_s(server), time.monotonic()
    time.sleep(seconds)
    made = tokens(server) - tokens_before
    return made / (time.monotonic() - before), made / max(scheduler_cpu_s(server) - cpu_before, 1e-9)


def interval(logs: list[float]) -> tuple[float, float, float]:
    """Geometric mean of ratios and its 95 % bootstrap interval."""
    chance = random.Random(1)
    means = sorted(statistics.fmean(chance.choices(logs, k=len(logs))) for _ in range(4000))
    return math.exp(statistics.fmean(logs)), math.exp(means[100]), math.exp(means[-101])


def on_server(pairs: int, seconds: float, rate_hz: float) -> None:
    """Paired slices on the real server, ppscope attached in every other one."""
    with running(ServerSpec(pp=2, extra="--enable-metrics")) as server:
        total = int(pairs * 2 * (seconds + 4) + 60)
        with server.load(clients=8, seconds=total, tokens=512) as load:
            time.sleep(10)
            speed, work, cores = [], [], []
            for number in range(pairs):
                results: dict[bool, tuple[float, float]] = {}
                for attached in (True, False) if number % 2 else (False, True):
                    if not attached:
                        results[False] = measure_slice(server, seconds)
                        continue
                    with Terminal([str(PPSCOPE), "attach", str(server.pid), "--rate", str(rate_hz)]) as terminal:
                        time.sleep(3)
                        used, before = tree_cpu_s(terminal.process.pid), time.monotonic()
                        results[True] = measure_slice(server, seconds)
                        cores.append((tree_cpu_s(terminal.process.pid) - used) / (time.monotonic() - before))
                        terminal.send("q")
                        terminal.wait()
                speed.append(math.log(results[True][0] / results[False][0]))
                work.append(math.log(results[True][1] / results[False][1]))
            load.send_signal(signal.SIGTERM)
        for name, logs in (("tokens/s", speed), ("tokens per scheduler CPU second", work)):
            mean, low, high = interval(logs)
            print(f"with ÷ without, {name}: {mean:.3f}  (95 % {low:.3f}–{high:.3f}, {pairs} pairs of {seconds:.0f} s)")
        print(f"ppscope and its children: {statistics.median(cores):.2f} core")


def machine() -> str:
    """One line that names the machine."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return f"{os.cpu_count()} cores of {model.group(1) if model else platform.machine()}, Python {platform.python_version()}"


def main() -> None:
    """Run the bench and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", action="store_true", help="also measure the real server's throughput")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--slice", type=float, default=6.0)
    parser.add_argument("--rate", type=float, default=50.0)
    options = parser.parse_args()
    print(time.strftime("%Y-%m-%d"), machine(), f"load {os.getloadavg()[0]:.1f}")
    subprocess.run([str(PPSCOPE), "--version"], check=True)
    beside_peers(options.seconds)
    if options.server:
        on_server(options.pairs, options.slice, options.rate)


if __name__ == "__main__":
    main()
