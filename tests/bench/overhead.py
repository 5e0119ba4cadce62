"""What attaching costs the real SGLang (PP 2, on CPU): throughput with ÷ without, in interleaved slices of one run.

Every slice with a program is held against the slices without one before and after it. A round has one with ppscope; every third adds
one at a rate that was asked for and one with each peer. The geometric mean of the ratios and its 95 % interval (bootstrap) are given
for tokens a second, and for tokens a CPU second of the schedulers, which a noisy machine disturbs less.

Requests fill the two slots alike (`--pp-max-micro-batch-size`): else chance puts five into one and three into the other, and the
slices differ by that.
"""

from __future__ import annotations

import math
import os
import random
import re
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import psutil

from tests.bench.peers import Peer, nvitop, ppscope, recorded, schedulers, topped, undeterred, watched
from tests.bench.processes import tree_cpu_s
from tests.bench.table import Measured, Row, Skip
from tests.sglang.server import ServerSpec, SglangServer, running
from tests.shared import KIT

ASKED = "ppscope --rate 50"
SETTLE_S = 12.0
"""A program that was just started reads symbols and settings; the first ten seconds of ppscope cost twice what the others do."""
PAUSE_S = 3.0
CLIENTS = 8
SERVER = "--enable-metrics --pp-max-micro-batch-size 4"

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
    """Slices of one loaded server, and the ratio of each to those without anything beside it."""

    def __init__(self, server: SglangServer, seconds: float, arms: dict[str, Peer]) -> None:
        self.server = server
        self.seconds = seconds
        self.ratios: dict[str, list[Slice]] = {}
        self.cores: dict[str, list[float]] = {}
        self._ours = arms
        self._peers, self.notes = peers(server)

    def _alone(self) -> Slice:
        time.sleep(PAUSE_S)
        return measure_slice(self.server, self.seconds)

    def _beside(self, arm: str) -> Slice:
        if arm in self._peers:
            with self._peers[arm]():
                time.sleep(SETTLE_S)
                return measure_slice(self.server, self.seconds)
        with watched(self._ours[arm]) as pid:
            time.sleep(SETTLE_S)
            used, before = tree_cpu_s(pid), time.monotonic()
            result = measure_slice(self.server, self.seconds)
            self.cores.setdefault(arm, []).append((tree_cpu_s(pid) - used) / (time.monotonic() - before))
            return result

    def run(self, count: int) -> None:
        """So many rounds."""
        first, *others = self._ours
        before = self._alone()
        for number in range(count):
            for arm in (first, *((*others, *self._peers) if number % 3 == 1 else ())):
                beside, after = self._beside(arm), self._alone()
                speed, work = (
                    math.log(with_it) - (math.log(one) + math.log(other)) / 2
                    for with_it, one, other in zip(beside, before, after, strict=True)
                )
                self.ratios.setdefault(arm, []).append((speed, work))
                before = after

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


@contextmanager
def kept_off(cores: set[int]) -> Iterator[None]:
    """This process and what it starts meanwhile run on the other cores only."""
    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, usual - cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, usual)


def measured(server: SglangServer, rounds: int, seconds: float, arms: dict[str, Peer]) -> Rounds:
    """The slices of a server under load."""
    slices = Rounds(server, seconds, arms)
    with loaded(server, CLIENTS, int(rounds * 4 * (2 * seconds + SETTLE_S) + 60)):
        slices.run(rounds)
    return slices


def rows(slices: Rounds, where: str) -> list[Row]:
    """Ratios and ppscope's own use."""
    found = []
    ours, *others = slices.cores
    for figure, name in enumerate(("tokens/s", "tokens a scheduler CPU second")):
        beside = {arm: slices.said(arm, figure) for arm in ("py-spy top", "py-spy record", "nvitop")}
        found.append(Row(f"{name}, with ÷ without, {where}", slices.said(ours, figure), "0.99", beside))
        found += [Row(f"the same, `{arm}`, {where}", slices.said(arm, figure)) for arm in others]
    cores = " / ".join(f"{statistics.median(slices.cores[arm]):.2f}" for arm in (ours, *others))
    found.append(Row(f"cores it took meanwhile, {' / '.join((ours, *others))}, {where}", cores))
    return found


def note(slices: Rounds, seconds: float, where: str) -> list[str]:
    """How it was measured."""
    how = f"slices of {seconds:.0f} s, {SETTLE_S:.0f} s after each start; mean and 95 % interval."
    narrow = "Neighbouring pairs share a slice, so the intervals are up to an eighth too narrow."
    return [f"Real SGLang 0.5.23, PP 2, on CPU, {CLIENTS} clients; {where}; {how} {narrow}", *slices.notes]


def shared_cores(rounds: int, seconds: float) -> Measured:
    """The server uses every core there is, and ppscope gives way."""
    _require_kit()
    with running(ServerSpec(pp=2, extra=SERVER)) as server:
        arms = {"ppscope": ppscope(server.pid), ASKED: ppscope(server.pid, "--rate", "50")}
        slices = measured(server, rounds, seconds, arms)
    return Measured(rows(slices, "no core to spare"), note(slices, seconds, "everything shares all cores"))


def spare_core(rounds: int, seconds: float) -> Measured:
    """The server has one core and all else has the others, as on a GPU node, where most cores are idle and ppscope need not give way."""
    _require_kit()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise Skip("there is one core only")
    spec = ServerSpec(pp=2, extra=SERVER, launch_prefix=f"taskset -c {cores[0]}")
    with running(spec) as server, kept_off({cores[0]}):
        slices = measured(server, rounds, seconds, {"ppscope": undeterred(server.pid)})
    return Measured(
        rows(slices, "a core to spare"), note(slices, seconds, "the server on one core, all else on the others")
    )


def _require_kit() -> None:
    if not KIT.exists():
        raise Skip(f"the kit that runs SGLang on CPU is not here ({KIT})")
