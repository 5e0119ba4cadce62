"""What attaching costs the real SGLang (PP 2, on CPU): throughput with ÷ without, in interleaved slices of one run.

A round is one slice without anything and one with ppscope, in changing order; every third round adds one at a lower rate and one with
each peer. The
geometric mean of the rounds' ratios and its 95 % interval (bootstrap over rounds) are given for tokens a second, and for tokens a
CPU second of the schedulers, which a noisy machine disturbs less.
"""

from __future__ import annotations

import math
import random
import re
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import psutil

from tests.bench.peers import nvitop, ppscope, recorded, schedulers, topped, watched
from tests.bench.processes import tree_cpu_s
from tests.bench.table import Measured, Row, Skip
from tests.sglang.server import ServerSpec, SglangServer, running
from tests.shared import KIT

SLOW = "ppscope --rate 20"
SETTLE_S = 12.0
"""A program that was just started reads symbols and settings; the first ten seconds of ppscope cost twice what the others do."""
PAUSE_S = 1.0

Slice = tuple[float, float]
"""(tokens a second, tokens a CPU second of the schedulers)"""


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


def peers(server: SglangServer) -> tuple[dict[str, Callable[[], AbstractContextManager[object]]], list[str]]:
    """The peers that run here, and why others do not."""
    stages = schedulers(server.pid)
    arms: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "py-spy top": lambda: topped(stages),
        "py-spy record": lambda: recorded(stages),
    }
    gpu = nvitop(None)
    if isinstance(gpu, str):
        return arms, [gpu]
    arms["nvitop"] = lambda: watched(gpu)
    return arms, []


class Rounds:
    """Slices of one loaded server, and their ratios to the slice without anything in the same round."""

    def __init__(self, server: SglangServer, seconds: float) -> None:
        self.server = server
        self.seconds = seconds
        self.ratios: dict[str, list[Slice]] = {}
        self.cores: dict[str, list[float]] = {}
        self._attach = {"ppscope": ppscope(server.pid), SLOW: ppscope(server.pid, "--rate", "20")}
        self._peers, self.notes = peers(server)

    def _slice(self, arm: str) -> Slice:
        if arm == "":
            time.sleep(PAUSE_S)
            return measure_slice(self.server, self.seconds)
        if arm in self._peers:
            with self._peers[arm]():
                time.sleep(SETTLE_S)
                return measure_slice(self.server, self.seconds)
        with watched(self._attach[arm]) as pid:
            time.sleep(SETTLE_S)
            used, before = tree_cpu_s(pid), time.monotonic()
            result = measure_slice(self.server, self.seconds)
            self.cores.setdefault(arm, []).append((tree_cpu_s(pid) - used) / (time.monotonic() - before))
            return result

    def run(self, count: int) -> None:
        """So many rounds."""
        for number in range(count):
            arms = ["", "ppscope", *((SLOW, *self._peers) if number % 3 == 2 else ())]
            # Whoever is measured first in a round is last in the next one.
            results = {arm: self._slice(arm) for arm in (arms if number % 2 else reversed(arms))}
            alone = results.pop("")
            for arm, (speed, work) in results.items():
                ratio = (math.log(speed / alone[0]), math.log(work / alone[1]))
                self.ratios.setdefault(arm, []).append(ratio)

    def said(self, arm: str, figure: int) -> str:
        """Ratio and interval of an arm."""
        found = self.ratios.get(arm)
        if not found:
            return "–"
        mean, low, high = interval([ratio[figure] for ratio in found])
        return f"{mean:.3f} ({low:.3f}–{high:.3f}, {len(found)} pairs)"


@contextmanager
def loaded(server: SglangServer, clients: int, seconds: int) -> Iterator[None]:
    """Clients that ask all the time, until the block ends."""
    with server.load(clients=clients, seconds=seconds, tokens=512) as load:
        time.sleep(8)
        yield
        server.end_load(load)


def overhead(rounds: int, seconds: float, clients: int) -> Measured:
    """Throughput of the real server with ÷ without, under this many clients."""
    if not KIT.exists():
        raise Skip(f"the kit that runs SGLang on CPU is not here ({KIT})")
    with running(ServerSpec(pp=2, extra="--enable-metrics")) as server:
        slices = Rounds(server, seconds)
        with loaded(server, clients, int(rounds * 4 * (seconds + SETTLE_S) + 60)):
            slices.run(rounds)
    where = f"{clients} client{'s' if clients > 1 else ''}"
    rows = []
    for figure, name in enumerate(("tokens/s", "tokens a scheduler CPU second")):
        beside = {arm: slices.said(arm, figure) for arm in ("py-spy top", "py-spy record", "nvitop")}
        rows.append(Row(f"{name}, with ÷ without, {where}", slices.said("ppscope", figure), "0.99", beside))
        rows.append(Row(f"the same with `--rate 20`, {where}", slices.said(SLOW, figure)))
    cores = " / ".join(
        f"{statistics.median(slices.cores[arm]):.2f}" for arm in ("ppscope", SLOW) if arm in slices.cores
    )
    rows.append(Row(f"ppscope's cores meanwhile, and with `--rate 20`, {where}", cores))
    note = f"Real SGLang 0.5.23, PP 2, on CPU; slices of {seconds:.0f} s, {SETTLE_S:.0f} s after each start; mean and 95 % interval."
    return Measured(rows, [note, *slices.notes])
