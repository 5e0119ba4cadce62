"""64 ranks at 50 Hz through the session and the real screen: how soon a key is painted while streaming, and what stays in memory.

Alone: `python -m tests.bench.ranks64 [--ranks 64] [--minutes 10] [--speed 1]`. Records are made as the collector makes them:
two-second windows of every rank, two batches of run times a second, dumps in rotation, GPU readings at 5 Hz. `--speed` is how many
seconds of the stream pass in a second here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time

import psutil
from textual import events

from ppscope import garbage
from ppscope.app import PpscopeApp
from ppscope.session import Session
from tests.bench.made_up import SECOND, START, Stream
from tests.bench.table import Measured as Part
from tests.bench.table import Row
from tests.shared import ROOT

KEYS = ("down", "up", "right", "left", "plus", "minus", "0", "3", "4", "5", "1", "space", "space", "enter", "escape")
BUDGET_MS = 100.0
HISTORY = "Ten minutes of history fill in that time: spans are compressed once they are two minutes old, what is older is dropped."


class Measured(PpscopeApp):
    """Notes how long each poll of the feed and each paint took, milliseconds."""

    def __init__(self, session: Session) -> None:
        self.paints: list[float] = []
        super().__init__(session)

    def paint(self, figures: bool = True) -> None:
        """Paint, and note how long it took."""
        began = time.perf_counter()
        super().paint(figures)
        self.paints.append((time.perf_counter() - began) * 1e3)


def quantile(values: list[float], share: float) -> float:
    """The value below which that share of all lies."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


class Figures:
    """What was seen so far: milliseconds from key to paint, CPU of each key, memory at the end of every minute."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.costs: list[tuple[float, str]] = []
        self.memory_mib: list[int] = []
        self.cores = 0.0

    def line(self, stream: Stream, app: Measured) -> str:
        """One line about everything so far."""
        passed = (stream.clock() - START) / SECOND
        return (
            f"{passed:6.0f} s of stream  {stream.sent:8d} records  memory {self.memory_mib[-1]:4d} MiB  "
            f"key to paint p50 {statistics.median(self.latencies):6.1f}  p99 {quantile(self.latencies, 0.99):6.1f} ms  "
            f"of it CPU p99 {quantile([cost for cost, _ in self.costs], 0.99):5.1f} ms  "
            f"paint p50 {statistics.median(app.paints):5.1f}  p99 {quantile(app.paints, 0.99):6.1f} ms\n"
        )


async def run(ranks: int, minutes: float, speed: float) -> Figures:
    """Stream and press keys; a line on stderr every minute."""
    stream = Stream(ranks, speed)
    session = Session(stream, clock=stream.clock)
    session.poll()
    app = Measured(session)
    garbage.settle()  # as `attach` does
    seen = Figures()
    process = psutil.Process()
    async with app.run_test(size=(160, 50)):
        began = time.monotonic()
        presses = 0
        while time.monotonic() - began < minutes * 60:
            await asyncio.sleep(0.13)
            key = KEYS[presses % len(KEYS)]
            presses += 1
            pressed, worked = time.perf_counter(), time.process_time()
            painted = asyncio.Event()
            app.post_message(events.Key(key, None))
            app.call_after_refresh(painted.set)
            await painted.wait()
            seen.latencies.append((time.perf_counter() - pressed) * 1e3)
            seen.costs.append(((time.process_time() - worked) * 1e3, key))
            if time.monotonic() - began >= 60 * (len(seen.memory_mib) + 1) - 1:
                seen.memory_mib.append(process.memory_info().rss >> 20)
                sys.stderr.write(seen.line(stream, app))
    cpu = process.cpu_times()
    seen.cores = (cpu.user + cpu.system) / (time.monotonic() - began)
    return seen


def view(minutes: float) -> Part:
    """The view of 64 ranks alone, at the stream's own speed, in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.ranks64", "--minutes", str(minutes), "--json"]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT).stdout)
    memory = found["memory_mib"]
    minutes_told = [minute for minute in (1, 5, 10) if minute <= len(memory)]
    rows = [
        Row(
            "key to paint, view of 64 ranks, ms p50 / p99", f"{found['p50']:.0f} / {found['p99']:.0f}", f"{BUDGET_MS:g}"
        ),
        Row(
            f"memory of it after {' / '.join(map(str, minutes_told))} minutes, MiB",
            " / ".join(str(memory[minute - 1]) for minute in minutes_told) or "–",
            "flat",
        ),
        Row("CPU of it while a key is pressed every 130 ms, cores", f"{found['cores']:.2f}"),
    ]
    notes = [
        f"{found['presses']} keys of 13 kinds in {minutes:g} minutes; made-up records of 64 ranks at 50 Hz in real time,"
    ]
    return Part(rows, [*notes, "one process with the generator of the records, no terminal.", HISTORY])


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--profile", action="store_true", help="where the time goes")
    parser.add_argument("--json", action="store_true", help="the figures as JSON on stdout")
    arguments = parser.parse_args()
    if arguments.profile:
        import cProfile
        import pstats

        profile = cProfile.Profile()
        profile.runcall(asyncio.run, run(arguments.ranks, arguments.minutes, arguments.speed))
        pstats.Stats(profile).sort_stats("cumulative").print_stats(45)
        return
    seen = asyncio.run(run(arguments.ranks, arguments.minutes, arguments.speed))
    p99 = quantile(seen.latencies, 0.99)
    if arguments.json:
        figures = {"p50": statistics.median(seen.latencies), "p99": p99, "presses": len(seen.latencies)}
        sys.stdout.write(json.dumps({**figures, "memory_mib": seen.memory_mib, "cores": seen.cores}))
        return
    dearest = ", ".join(f"{key} {cost:.0f} ms" for cost, key in sorted(seen.costs)[:-9:-1])
    sys.stdout.write(f"dearest keys: {dearest}\nCPU of the view {seen.cores:.2f} core at {arguments.speed:g}× speed\n")
    sys.stdout.write(
        f"{'within' if p99 <= BUDGET_MS else 'ABOVE'} the budget of {BUDGET_MS:g} ms from key to paint at p99\n"
    )


if __name__ == "__main__":
    main()
