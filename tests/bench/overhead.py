"""What attaching costs the real SGLang (PP 2, on CPU): throughput with ÷ without, in slices of seconds of one run.

Each program is started once and then held (SIGSTOP) and let go in turn: every slice beside it is held against the slices before and
after it. The machine is now faster and now slower for seconds to minutes; slices this near to each other see the same of it, and
there are ten times as many in an hour as with a start for each. What is let go catches up, so that it takes more CPU meanwhile than
when it runs all the time (both are told): the ratio is too low rather than too high.

The geometric mean of the ratios and its 95 % interval (bootstrap) are given for tokens a second, and for tokens a CPU second of the
schedulers. Requests fill the two slots alike (`--pp-max-micro-batch-size`) and have different lengths: else chance puts five into one
and three into the other, and all end at once.
"""

from __future__ import annotations

import math
import os
import random
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psutil

from tests.bench.peers import looping, nvitop, ppscope, recorded, schedulers, topped, undeterred, watched
from tests.bench.processes import hold, let_go, tree_cpu_s
from tests.bench.table import Measured, Row, Skip
from tests.sglang.server import ServerSpec, SglangServer, running
from tests.shared import KIT

OURS = "ppscope"
ASKED = "ppscope --rate 50"
LOOP = "a loop"
SETTLE_S = 15.0
"""A program that was just started reads symbols and settings; the first ten seconds of ppscope cost twice what the others do."""
STEADY_S = 10.0
CATCH_UP_S = 1.0
CLIENTS = 8
SERVER = "--enable-metrics --pp-max-micro-batch-size 4"
LOOP_CORES = 0.17
"""As much as ppscope takes while it is let go where no core is to spare."""

Slice = tuple[float, float]
"""(tokens a second, tokens a CPU second of the schedulers)"""
Arm = Callable[[], AbstractContextManager[list[int]]]
"""Starts a program and gives the pids of its processes' trees."""


def scheduler_cpu_s(server: SglangServer) -> float:
    """CPU seconds of the server's schedulers."""
    times = [psutil.Process(pid).cpu_times() for pid in schedulers(server.pid)]
    return float(sum(used.user + used.system for used in times))


def tokens(server: SglangServer) -> float:
    """Tokens generated so far, by the server's counter."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(
        r'^sglang:realtime_tokens_total\{[^}]*mode="decode"[^}]*pp_rank="0"[^}]*\} (\S+)', text, re.MULTILINE
    )
    found = found or re.findall(r"^sglang:generation_tokens_total\{[^}]*\} (\S+)", text, re.MULTILINE)
    return sum(map(float, found))


def measure_slice(server: SglangServer, seconds: float) -> Slice:
    """Throughput over a slice."""
    tokens_before, cpu_before, before = tokens(server), scheduler_cpu_s(server), time.monotonic()
    time.sleep(seconds)
    made = tokens(server) - tokens_before
    return made / (time.monotonic() - before), made / max(scheduler_cpu_s(server) - cpu_before, 1e-9)


def interval(logs: list[float]) -> tuple[float, float, float]:
    """Geometric mean of ratios and its 95 % bootstrap interval."""
    chance = random.Random(1)
    means = sorted(statistics.fmean(chance.choices(logs, k=len(logs))) for _ in range(4000))
    return math.exp(statistics.fmean(logs)), math.exp(means[100]), math.exp(means[-101])


def arms(server: SglangServer, *ours: str) -> tuple[dict[str, Arm], list[str]]:
    """The programs that run here, ours first, and why others do not."""
    stages = schedulers(server.pid)
    usual: dict[str, Arm] = {
        OURS: lambda: watched(ppscope(server.pid)),
        ASKED: lambda: watched(ppscope(server.pid, "--rate", "50")),
        "undeterred": lambda: watched(undeterred(server.pid)),
    }
    found = {OURS if name == "undeterred" else name: usual[name] for name in ours}
    found |= {"py-spy top": lambda: topped(stages), "py-spy record": lambda: recorded(stages)}
    gpu = nvitop(None)
    absent = [gpu] if isinstance(gpu, str) else []
    if not isinstance(gpu, str):
        found["nvitop"] = lambda: watched(gpu)
    found[LOOP] = lambda: looping(LOOP_CORES)
    return found, absent


class Slices:
    """Slices of one loaded server beside a program and without: the ratios, and the cores the program took."""

    def __init__(self, server: SglangServer, seconds: float) -> None:
        self.server = server
        self.seconds = seconds
        self.ratios: dict[str, list[Slice]] = {}
        self.cores: dict[str, tuple[float, float]] = {}
        """Running all the time, and while let go."""
        self.notes: list[str] = []

    def _slice(self, pids: list[int], with_it: bool) -> tuple[Slice, float]:
        (let_go if with_it else hold)(pids)
        time.sleep(CATCH_UP_S)
        used, before = sum(map(tree_cpu_s, pids)), time.monotonic()
        result = measure_slice(self.server, self.seconds)
        return result, (sum(map(tree_cpu_s, pids)) - used) / (time.monotonic() - before)

    def run(self, name: str, arm: Arm, pairs: int) -> None:
        """Measure so many slices beside a program, each between two without."""
        with arm() as pids:
            time.sleep(SETTLE_S)
            used, before = sum(map(tree_cpu_s, pids)), time.monotonic()
            time.sleep(STEADY_S)
            steady = (sum(map(tree_cpu_s, pids)) - used) / (time.monotonic() - before)
            try:
                slices = [self._slice(pids, bool(number % 2)) for number in range(2 * pairs + 1)]
            finally:
                let_go(pids)
        self.cores[name] = steady, statistics.fmean(cores for _, cores in slices[1::2])
        self.ratios[name] = [
            ratio(slices[at][0], slices[at - 1][0], slices[at + 1][0]) for at in range(1, len(slices), 2)
        ]

    def said(self, name: str, figure: int) -> str:
        """Ratio and interval beside a program."""
        found = self.ratios.get(name)
        if not found:
            return "–"
        mean, low, high = interval([both[figure] for both in found])
        return f"{mean:.3f} ({low:.3f}–{high:.3f}, {len(found)} pairs)"


def ratio(beside: Slice, before: Slice, after: Slice) -> Slice:
    """Logarithms of what a slice made ÷ what its neighbours made."""
    speed, work = (
        math.log(with_it) - (math.log(one) + math.log(other)) / 2
        for with_it, one, other in zip(beside, before, after, strict=True)
    )
    return speed, work


@contextmanager
def asked(server: SglangServer) -> Iterator[None]:
    """Clients that ask all the time, until the block ends."""
    command = [
        sys.executable,
        str(Path(__file__).with_name("asking.py")),
        f"http://127.0.0.1:{server.port}",
        str(CLIENTS),
    ]
    with subprocess.Popen(command) as clients:
        try:
            time.sleep(8)
            yield
        finally:
            clients.kill()


@contextmanager
def kept_off(cores: set[int]) -> Iterator[None]:
    """This process and what it starts meanwhile run on the other cores only."""
    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, usual - cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, usual)


def measured(server: SglangServer, pairs: tuple[int, int], seconds: float, *ours: str) -> Slices:
    """The slices of a server under load: `pairs` beside ppscope, and beside each other program."""
    slices = Slices(server, seconds)
    with asked(server):
        found, slices.notes = arms(server, *ours)
        for name, arm in found.items():
            slices.run(name, arm, pairs[0] if name == OURS else pairs[1])
    return slices


def rows(slices: Slices, where: str) -> list[Row]:
    """Ratios and ppscope's own use."""
    found = []
    others = [name for name in slices.ratios if name not in (OURS, ASKED)]
    for figure, name in enumerate(("tokens/s", "tokens a scheduler CPU second")):
        beside = {arm: slices.said(arm, figure) for arm in others}
        found.append(Row(f"{name}, with ÷ without, {where}", slices.said(OURS, figure), "0.99", beside))
        if ASKED in slices.ratios:
            found.append(Row(f"the same, `{ASKED}`, {where}", slices.said(ASKED, figure)))
    taken = {name: f"{steady:.2f} / {let_go:.2f}" for name, (steady, let_go) in slices.cores.items()}
    cores = taken[OURS] + (f"; `{ASKED}` {taken[ASKED]}" if ASKED in taken else "")
    beside = {name: taken[name] for name in others}
    found.append(Row(f"cores it takes, running all the time / let go for a slice, {where}", cores, beside=beside))
    return found


def note(slices: Slices, where: str) -> list[str]:
    """How it was measured."""
    how = (
        f"slices of {slices.seconds:.0f} s, each beside a program between two while it is held; mean and 95 % interval."
    )
    narrow = "Neighbouring pairs share a slice, so the intervals are up to an eighth too narrow."
    loop = f"The loop computes for {LOOP_CORES} core at idle priority (SCHED_IDLE) and touches nothing of the server's."
    return [f"Real SGLang 0.5.23, PP 2, on CPU, {CLIENTS} clients; {where}; {how} {narrow} {loop}", *slices.notes]


def shared_cores(pairs: tuple[int, int], seconds: float) -> Measured:
    """The server uses every core there is, and ppscope gives way."""
    _require_kit()
    with running(ServerSpec(pp=2, extra=SERVER)) as server:
        slices = measured(server, pairs, seconds, OURS, ASKED)
    return Measured(rows(slices, "no core to spare"), note(slices, "everything shares all cores"))


def spare_core(pairs: tuple[int, int], seconds: float) -> Measured:
    """The server has one core and all else has the others, as on a GPU node, where most cores are idle and ppscope need not give way."""
    _require_kit()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise Skip("there is one core only")
    spec = ServerSpec(pp=2, extra=SERVER, launch_prefix=f"taskset -c {cores[0]}")
    with running(spec) as server, kept_off({cores[0]}):
        slices = measured(server, pairs, seconds, "undeterred")
    return Measured(rows(slices, "a core to spare"), note(slices, "the server on one core, all else on the others"))


def _require_kit() -> None:
    if not KIT.exists():
        raise Skip(f"the kit that runs SGLang on CPU is not here ({KIT})")
