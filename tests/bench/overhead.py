"""What attaching costs the real SGLang (PP 2, on CPU): throughput with ÷ without, in slices of seconds of one run.

Each program is started once and then held (SIGSTOP) and let go in turn: every slice beside it is held against the slices before and
after it. The machine is now faster and now slower for seconds to minutes; slices this near to each other see the same of it, and
there are ten times as many in an hour as with a start for each. It is held for less than the three seconds after which ppscope gives
a late py-spy up; what it takes when let go and soon after its start are both told. Every slice holds one page of `/metrics`
for the count of tokens, 17 ms of the server's CPU: where the server has one core, that lifts the ratio by 0.3 %.

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
SLEEPER = "one that sleeps"
ROUNDS = 2
SETTLE_S = 12.0
"""A program that was just started reads symbols and settings; the first ten seconds of ppscope cost twice what the others do."""
PEER_SETTLE_S = 5.0
STEADY_S = 5.0
CATCH_UP_S = 1.0
HELD_S = 2.4
BESIDE_S = 5.0
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
    before, tokens_before = time.monotonic(), tokens(server)
    before, cpu_before = (before + time.monotonic()) / 2, scheduler_cpu_s(server)
    time.sleep(seconds)
    after, made = time.monotonic(), tokens(server) - tokens_before
    after = (after + time.monotonic()) / 2
    return made / (after - before), made / max(scheduler_cpu_s(server) - cpu_before, 1e-9)


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
    found |= {LOOP: lambda: looping(LOOP_CORES), SLEEPER: lambda: looping(0.0)}
    return found, absent


class Slices:
    """Slices of one loaded server beside a program and without: the ratios, and the cores the program took."""

    def __init__(self, server: SglangServer) -> None:
        self.server = server
        self.ratios: dict[str, list[Slice]] = {}
        self.cores: dict[str, tuple[list[float], list[float]]] = {}
        """In the seconds after it settled, and while let go."""
        self.notes: list[str] = []

    def _beside(self, pids: list[int]) -> tuple[Slice, float]:
        let_go(pids)
        time.sleep(CATCH_UP_S)
        used, before = sum(map(tree_cpu_s, pids)), time.monotonic()
        result = measure_slice(self.server, BESIDE_S)
        taken = sum(map(tree_cpu_s, pids)) - used
        if any(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in pids):
            raise RuntimeError("a program ended while it was measured")
        return result, taken / (time.monotonic() - before)

    def _without(self, pids: list[int]) -> Slice:
        hold(pids)
        return measure_slice(self.server, HELD_S)

    def run(self, name: str, arm: Arm, pairs: int) -> None:
        """Measure so many slices beside a program, each between two without."""
        ratios = self.ratios.setdefault(name, [])
        steady, going = self.cores.setdefault(name, ([], []))
        with arm() as pids:
            time.sleep(SETTLE_S if name in (OURS, ASKED) else PEER_SETTLE_S)
            used, began = sum(map(tree_cpu_s, pids)), time.monotonic()
            time.sleep(STEADY_S)
            steady.append((sum(map(tree_cpu_s, pids)) - used) / (time.monotonic() - began))
            try:
                before = self._without(pids)
                for _ in range(pairs):
                    (beside, taken), after = self._beside(pids), self._without(pids)
                    ratios.append(ratio(beside, before, after))
                    going.append(taken)
                    before = after
            finally:
                let_go(pids)

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


def measured(server: SglangServer, pairs: tuple[int, int], *ours: str) -> Slices:
    """The slices of a server under load: `pairs` a round beside ppscope, and beside each other program."""
    slices = Slices(server)
    with asked(server):
        found, slices.notes = arms(server, *ours)
        for _ in range(ROUNDS):
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
    taken = {
        name: f"{statistics.fmean(steady):.2f} / {statistics.fmean(going):.2f}"
        for name, (steady, going) in slices.cores.items()
    }
    cores = taken[OURS] + (f"; `{ASKED}` {taken[ASKED]}" if ASKED in taken else "")
    beside = {name: taken[name] for name in others}
    found.append(
        Row(f"cores it takes, {SETTLE_S:.0f} s after its start / let go for a slice, {where}", cores, beside=beside)
    )
    return found


def note(slices: Slices, where: str) -> list[str]:
    """How it was measured."""
    how = f"slices of {BESIDE_S:.0f} s beside a program, each between two of {HELD_S} s while it is held, in {ROUNDS} rounds;"
    narrow = (
        "mean and 95 % interval (bootstrap; neighbouring pairs share a slice: an eighth too narrow, of six pairs a third),"
        " of one run: runs differ by more."
    )
    loop = f"The loop computes for {LOOP_CORES} core at idle priority (SCHED_IDLE) and touches nothing of the server's."
    page = "Every slice holds one page of `/metrics` for the count of tokens: where the server has one core, that lifts the ratio by 0.3 %."
    return [
        f"Real SGLang 0.5.23, PP 2, on CPU, {CLIENTS} clients; {where}; {how} {narrow} {loop} {page}",
        *slices.notes,
    ]


def shared_cores(pairs: tuple[int, int]) -> Measured:
    """The server uses every core there is, and ppscope gives way."""
    _require_kit()
    with running(ServerSpec(pp=2, extra=SERVER)) as server:
        slices = measured(server, pairs, OURS, ASKED)
    return Measured(rows(slices, "no core to spare"), note(slices, "everything shares all cores"))


def spare_core(pairs: tuple[int, int]) -> Measured:
    """The server has one core and all else has the others, as on a GPU node, where most cores are idle and ppscope need not give way."""
    _require_kit()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise Skip("there is one core only")
    spec = ServerSpec(pp=2, extra=SERVER, launch_prefix=f"taskset -c {cores[0]}")
    with running(spec) as server, kept_off({cores[0]}):
        slices = measured(server, pairs, "undeterred")
    return Measured(rows(slices, "a core to spare"), note(slices, "the server on one core, all else on the others"))


def _require_kit() -> None:
    if not KIT.exists():
        raise Skip(f"the kit that runs SGLang on CPU is not here ({KIT})")
