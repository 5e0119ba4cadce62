"""What-if on the real SGLang: throughput predicted from one state of the server against the one measured in another.

`python -m tests.bench.whatif [--rounds N] [-o FILE]`: a server of four stages on CPU, once with an even and once with an uneven split of
the layers, taken in turns; every round looks at every state anew, so that a machine that gets slower does so for all of them. A
prediction rests on one look at the state before, the measured figure is the median of all looks at the state after.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import permutations
from pathlib import Path
from statistics import median
from typing import NamedTuple

from ppscope.collect.client import CollectorProcess
from ppscope.diagnose.evidence import Evidence
from ppscope.diagnose.predict import RANGE, predict, throughput
from ppscope.diagnose.whatif import Change
from ppscope.session import Session
from ppscope.session.evidence import gather
from tests.bench.processes import tree_cpu_s
from tests.bench.table import machine
from tests.sglang.batches import generate, post
from tests.sglang.server import ServerSpec, SglangServer, running

EVEN, UNEVEN = (2, 2, 2, 2), (1, 1, 4, 2)
STAGES = 4
SETTLE_S, DUMPS_S, LOOK_S = 3.0, 8.0, 10.0
"""After the load began; while ppscope's first dumps slow the server down; the look that counts."""
KV_TOKENS = 7600
LONGEST = 1000


class State(NamedTuple):
    """What a look is at: a split of the layers, prompts of the one batched request, and the micro-batch limit."""

    layers: tuple[int, ...]
    prompts: int
    limit: int

    @property
    def slots(self) -> int:
        """The prompts come in one message, so they fill slot after slot."""
        return min(-(-self.prompts // self.limit), STAGES)

    def __str__(self) -> str:
        split = "" if self.layers == EVEN else f", layers {','.join(map(str, self.layers))}"
        return f"{self.prompts} in {self.slots} slot{'s' if self.slots > 1 else ''}{split}"


STATES = {
    EVEN: [State(EVEN, 1, 8), State(EVEN, 8, 8), State(EVEN, 8, 4), State(EVEN, 8, 2), State(EVEN, 16, 4)],
    UNEVEN: [State(UNEVEN, 8, 8), State(UNEVEN, 8, 2)],
}


class Look(NamedTuple):
    """One look at a state; `strangers` are the cores that neither the server nor ppscope nor this bench used meanwhile."""

    evidence: Evidence
    rate: float
    strangers: float


class Row(NamedTuple):
    """One change: tokens a second before, a prediction by each look, and what was measured after."""

    before: State
    after: State
    rates_before: list[float]
    predictions: list[float]
    withheld: int
    measured: list[float]

    @property
    def within(self) -> bool | None:
        """Whether the median measured lies in the range of the median prediction; None where all were withheld."""
        if not self.predictions:
            return None
        return abs(median(self.measured) - median(self.predictions)) <= RANGE * median(self.predictions)

    def single(self) -> int:
        """How many single predictions have the median measured in their range."""
        return sum(abs(median(self.measured) - one) <= RANGE * one for one in self.predictions)


@contextmanager
def one_request(server: SglangServer, state: State) -> Iterator[threading.Thread]:
    """One batched request that lasts as long as the block."""

    def ask() -> None:
        with suppress(OSError):
            generate(server, state.prompts, min(LONGEST, KV_TOKENS // state.prompts))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield asking
    finally:
        post(server, "/abort_request", {"rid": "", "abort_all": True})
        asking.join()


def stranger_core_s(server: SglangServer) -> float:
    """Time that strangers' processes have had of all cores since the machine started."""
    user, nice, system, _, _, irq, softirq, steal, *_ = map(int, Path("/proc/stat").read_text().split()[1:11])
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return busy - tree_cpu_s(server.pid) - tree_cpu_s(os.getpid())


def look(server: SglangServer, state: State) -> Look:
    """Evidence of the server in a state, of a time in which ppscope only samples."""
    post(server, "/set_internal_state", {"server_args": {"pp_max_micro_batch_size": state.limit}})
    with one_request(server, state) as asking:
        time.sleep(SETTLE_S)
        session = Session(CollectorProcess(["--pid", str(server.pid)]))
        try:
            poll(session, DUMPS_S)
            began, used = time.monotonic(), stranger_core_s(server)
            poll(session, LOOK_S)
            strangers = (stranger_core_s(server) - used) / (time.monotonic() - began)
            found = gather(session, session.present_ns(), int(LOOK_S * 1e9))
        finally:
            session.close()
        if found is None or not asking.is_alive():
            raise RuntimeError(f"{state}: {'nothing was seen' if found is None else 'the request ended too early'}")
    return Look(found, throughput(found) or 0.0, strangers)


def poll(session: Session, seconds: float) -> None:
    """Take in the stream for a while."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        time.sleep(0.2)
        session.poll()


def change(before: State, after: State) -> Change:
    """The change from one state to another, as one would ask for it."""
    return Change(
        slots_used=after.slots if after.slots != before.slots else None,
        requests=after.prompts if after.prompts != before.prompts else None,
        layers=after.layers if after.layers != before.layers else None,
    )


def row(before: State, after: State, looks: dict[State, list[Look]]) -> Row:
    """One line of the table."""
    found = [predict(seen.evidence, change(before, after)) for seen in looks[before]]
    told = [one.then for one in found if one is not None]
    rates = [[seen.rate for seen in looks[state]] for state in (before, after)]
    return Row(before, after, rates[0], told, len(found) - len(told), rates[1])


def changes() -> list[tuple[State, State]]:
    """Every change of slots and requests on one server, and of the split at the same load."""
    pairs = [pair for states in STATES.values() for pair in permutations(states, 2)]
    every = [state for states in STATES.values() for state in states]
    return pairs + [(a, b) for a, b in permutations(every, 2) if a.layers != b.layers and a[1:] == b[1:]]


def figures(values: Sequence[float]) -> str:
    """`67 (64–71)`: the median and the least and most."""
    return f"{median(values):.0f} ({min(values):.0f}–{max(values):.0f})"


def markdown(looks: dict[State, list[Look]]) -> str:
    """The table, and how many of its changes were predicted within the range."""
    rows = [row(before, after, looks) for before, after in changes() if looks.get(before) and looks.get(after)]
    lines = [
        "| before → after | before, tok/s | predicted | measured | |",
        "|---|---|---|---|---|",
    ]
    for one in rows:
        if one.predictions:
            then = median(one.predictions)
            span = f"{then * (1 - RANGE):.0f}–{then * (1 + RANGE):.0f}"
        said = {True: "within", False: "outside", None: "–"}[one.within]
        span = span if one.predictions else "withheld"
        lines.append(
            f"| {one.before} → {one.after} | {figures(one.rates_before)} | {span} | {figures(one.measured)} | {said} |"
        )
    told = [one for one in rows if one.within is not None]
    single, count = sum(one.single() for one in told), sum(len(one.predictions) for one in told)
    lines += [
        "",
        f"{sum(bool(one.within) for one in told)} of {len(told)} changes within ±{RANGE * 100:.0f} % by the medians,"
        f" {single} of {count} single predictions; {sum(one.withheld for one in rows)} withheld.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure and print the table; always 0: the numbers are for people."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="how often every state is looked at")
    parser.add_argument("-o", "--output", type=Path, help="write the table there as well")
    options = parser.parse_args()
    said = f"{machine()}, {time.strftime('%Y-%m-%d %H:%M')}, load {os.getloadavg()[0]:.1f} before"
    print(said, flush=True)
    looks: dict[State, list[Look]] = {}
    for number in range(options.rounds):
        for layers, states in STATES.items():
            with running(ServerSpec("0.5.23", STAGES, layers=layers)) as server:
                for state in states:
                    seen = look(server, state)
                    looks.setdefault(state, []).append(seen)
                    size = seen.evidence.micro_batch or 0.0
                    print(
                        f"round {number + 1}, {state}: {seen.rate:.1f} tok/s, micro-batch {size:.1f}, strangers use"
                        f" {seen.strangers:.2f} cores",
                        flush=True,
                    )
    table = f"{said}, {options.rounds} rounds.\n\n{markdown(looks)}"
    print(table)
    if options.output is not None:
        options.output.write_text(table, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
