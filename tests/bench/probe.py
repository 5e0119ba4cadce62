"""What the probe costs, and how far the sampled view is from the truth that the probe knows.

    python -m tests.bench.probe              nanoseconds a span, in this Python
    python -m tests.bench.probe --server     and on the real SGLang (PP 2, CPU): spans a token, throughput awake ÷ dormant,
                                             phase shares and busy by stacks against the probe

Throughput is paired within one server: a dormant probe is woken in every other slice. The geometric mean of the pairs' ratios
and its 95 % confidence interval (bootstrap over pairs) are printed, and the same of tokens per CPU second of the schedulers,
which a noisy machine disturbs less.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

from ppscope.collect.client import CollectorProcess
from ppscope.probe import layout
from ppscope.probe.recorder import Recorder
from ppscope.probe.wrappers import timed
from ppscope.session import Session
from ppscope.session.ranks import RankState
from ppscope.session.stages import FORWARD
from tests.bench.overhead import interval, measure_slice, tokens
from tests.bench.table import Measured, Row, machine
from tests.sglang.server import ServerSpec, SglangServer, running
from tests.terminal.terminal import PPSCOPE

DORMANT = f"env PPSCOPE_PROBE=wanted {PPSCOPE} launch --"
ALLOWED_POINTS = 3.0


def ns_per_call(call: Callable[[int, int], object], count: int = 20_000) -> float:
    """Nanoseconds of CPU of one call, the best of many rounds: other work on the machine only ever adds."""
    best = math.inf
    for _ in range(40):
        before = time.thread_time_ns()
        for _ in range(count):
            call(1, 2)
        best = min(best, (time.thread_time_ns() - before) / count)
    return best


def span_cost() -> float:
    """Print the cost of a span and of a wrapper that writes none; returns nanoseconds added by a written span."""

    def nothing(a: int, b: int) -> None:
        return None

    with tempfile.TemporaryDirectory() as base:
        recorder = Recorder(always=True, base=base)
        wrapped, short = timed(recorder, nothing, layout.SEND, 0), timed(recorder, nothing, layout.SEND, 10**9)
        bare, dormant = ns_per_call(nothing), ns_per_call(wrapped)
        recorder.next_turn(None)
        written, unwritten = ns_per_call(wrapped), ns_per_call(short)
    print(
        f"a call {bare:.0f} ns; wrapped and dormant +{dormant - bare:.0f}, too short to be written +{unwritten - bare:.0f}"
    )
    print(f"a span +{written - bare:.0f} ns (budget 1000)")
    return written - bare


def span() -> Measured:
    """The cost of a span for the table."""
    with redirect_stdout(sys.stderr):
        cost = span_cost()
    return Measured([Row("probe of exact mode, a span, ns", f"{cost:.0f}", "1000")], ["The best of 40 rounds."])


class Wanted:
    """Wakes the dormant probes of a server for so long, or lets them sleep."""

    def __init__(self) -> None:
        self._files = list(Path(f"/dev/shm/{layout.FOLDER.format(uid=os.getuid())}").glob("wanted-*"))

    def set(self, awake: bool, seconds: float) -> None:
        until = time.monotonic_ns() + int(seconds * 1e9) if awake else 0
        for path in self._files:
            os.utime(path, ns=(until, until))
        time.sleep(0.2)


def written() -> int:
    """Spans written by every ring that is there."""
    rings = Path(f"/dev/shm/{layout.FOLDER.format(uid=os.getuid())}").glob("ring-*")
    return sum(layout.LIVE.unpack_from(path.read_bytes()[:4096], layout.LIVE_OFFSET)[0] for path in rings)


def cost_on_server(server: SglangServer, span_ns: float, pairs: int, seconds: float) -> None:
    """Spans a token, and paired throughput with the probe awake and dormant."""
    wanted = Wanted()
    wanted.set(True, 6)
    spans, made, before = written(), tokens(server), time.monotonic()
    time.sleep(5)
    took, spans, made = time.monotonic() - before, written() - spans, tokens(server) - made
    stages = server.spec.pp
    per_token, share = spans / max(made, 1), spans / stages * span_ns * 1e-9 / took
    print(f"{per_token:.1f} spans a token over {stages} stages, {spans / stages / took:.0f} a second and stage")
    print(f"spans × ns = {100 * share:.3f} % of the time (budget 0.5 %)")
    speed, work = [], []
    for number in range(pairs):
        results = {}
        for awake in (True, False) if number % 2 else (False, True):
            wanted.set(awake, seconds + 1)
            results[awake] = measure_slice(server, seconds)
        speed.append(math.log(results[True][0] / results[False][0]))
        work.append(math.log(results[True][1] / results[False][1]))
    for name, logs in (("tokens/s", speed), ("tokens per scheduler CPU second", work)):
        mean, low, high = interval(logs)
        print(f"awake ÷ dormant, {name}: {mean:.3f}  (95 % {low:.3f}–{high:.3f}, {pairs} pairs of {seconds:.1f} s)")


def shares(state: RankState, names: list[str], start: int, end: int) -> tuple[dict[str, float], dict[str, float]]:
    """Phase shares of a window by stacks and by the probe."""
    assert state.exact is not None
    both = []
    for times in (state.sampled_times(start, end), state.exact.timeline.times(start, end)):
        seen = sum(times.values())
        both.append({names[phase]: took / seen for phase, took in times.items()})
    return both[0], both[1]


def accuracy(server: SglangServer, seconds: float) -> bool:
    """Print both views of one load and their difference; True when no figure is off by more than is allowed."""
    stream = CollectorProcess(["--pid", str(server.pid)])
    session = Session(stream)
    good = True
    try:
        deadline = time.monotonic() + seconds + 4
        while time.monotonic() < deadline:
            stream.wait(0.2)
            session.poll()
        names = [style.name for style in session.phases()]
        for key, state in sorted(session.states.items()):
            newest = [extent[1] for extent in state.extents()]
            end = min(newest) if len(newest) == 2 else None
            if end is None:
                print(f"PP{key.pp}: not seen by both")
                good = False
                continue
            sampled, exact = shares(state, names, end - int(seconds * 1e9), end)
            rows = [
                (name, sampled.get(name, 0.0), exact.get(name, 0.0)) for name in sorted(sampled.keys() | exact.keys())
            ]
            rows.append(("busy", sum(sampled.get(n, 0.0) for n in FORWARD), sum(exact.get(n, 0.0) for n in FORWARD)))
            print(f"PP{key.pp} over {seconds:.0f} s      stacks   probe   error")
            for name, by_stacks, by_probe in sorted(rows, key=lambda row: -row[2]):
                if max(by_stacks, by_probe) >= 0.005:
                    error = 100 * (by_stacks - by_probe)
                    bad = abs(error) > ALLOWED_POINTS
                    good = good and not bad
                    print(f"  {name:18} {by_stacks:6.1%}  {by_probe:6.1%}  {error:+6.1f}{'  ←' if bad else ''}")
    finally:
        session.close()
    return good


def main() -> int:
    """Run the bench and print its figures; 1 when the sampled view is off by more than three points."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", action="store_true", help="also measure on the real server")
    parser.add_argument("--version", default="0.5.23")
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--slice", type=float, default=0.7)
    parser.add_argument("--seconds", type=float, default=20.0, help="of the comparison of stacks and probe")
    options = parser.parse_args()
    print(time.strftime("%Y-%m-%d"), machine(), f"load {os.getloadavg()[0]:.1f}")
    span_ns = span_cost()
    if not options.server:
        return 0
    spec = ServerSpec(options.version, pp=2, extra="--enable-metrics", launch_prefix=DORMANT)
    with running(spec) as server:
        seconds = int(options.pairs * 2 * (options.slice + 1) + options.seconds + 60)
        with server.load(clients=8, seconds=seconds, tokens=512) as load:
            time.sleep(8)
            good = accuracy(server, options.seconds)
            if options.pairs:
                cost_on_server(server, span_ns, options.pairs, options.slice)
            server.end_load(load)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
