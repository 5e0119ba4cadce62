"""What-if on the real SGLang: throughput predicted from one state of the server against the one measured in another.

Run with `python -m tests.bench.whatif`: starts two servers of four stages on CPU, one after the other, and prints a table.
"""

from __future__ import annotations

import sys
import time
from typing import NamedTuple

from ppscope.collect.client import CollectorProcess
from ppscope.diagnose.evidence import Evidence
from ppscope.diagnose.predict import Prediction, predict, throughput
from ppscope.diagnose.whatif import Change
from ppscope.session import Session
from ppscope.session.dumping import burst
from ppscope.session.evidence import gather
from tests.sglang.server import ServerSpec, SglangServer, running
from tests.sglang.test_findings_real import batches_of, post

EVEN = ServerSpec("0.5.23", 4, layers=(2, 2, 2, 2))
UNEVEN = ServerSpec("0.5.23", 4, layers=(1, 1, 4, 2))
SETTLE_S, LOOK_S = 4.0, 20.0
STATES = ((1, 8), (8, 8), (8, 4), (8, 2), (16, 4))
"""(prompts of the one batched request, --pp-max-micro-batch-size)"""


class Row(NamedTuple):
    """One line of the table."""

    change: str
    before: float
    predicted: Prediction | None
    measured: float


def look(server: SglangServer, prompts: int, limit: int) -> Evidence:
    """Evidence of the server under a load."""
    post(server, "/set_internal_state", {"server_args": {"pp_max_micro_batch_size": limit}})
    with batches_of(server, prompts, 160):
        time.sleep(SETTLE_S)
        session = Session(CollectorProcess(["--pid", str(server.pid)]))
        try:
            ends = time.monotonic() + LOOK_S
            asked = False
            while time.monotonic() < ends:
                time.sleep(0.2)
                session.poll()
                if not asked and session.server is not None and time.monotonic() > ends - LOOK_S * 0.6:
                    asked = True
                    for command in burst(session.server, 48):
                        session.send(command)
            found = gather(session, session.present_ns())
        finally:
            session.close()
    assert found is not None
    return found


def slots_of(prompts: int, seen: Evidence) -> int:
    """The slots that the prompts really took: the first to come is admitted alone, so a limit does not fill slots to the brim."""
    return max(1, min(4, round(prompts / (seen.micro_batch or prompts))))


def table() -> list[Row]:
    """Each change between two states of the even server, and the one to another split of the layers."""
    rows = []
    with running(EVEN) as server:
        even = {state: look(server, *state) for state in STATES}
    for before in STATES:
        for after in STATES:
            if before != after:
                used = slots_of(after[0], even[after])
                change = Change(slots_used=used, requests=after[0] if after[0] != before[0] else None)
                name = f"{_name(before, even[before])} → {_name(after, even[after])}"
                rows.append(_row(name, even[before], change, even[after]))
    full = (8, 2)
    with running(UNEVEN) as server:
        uneven = look(server, *full)
    rows.append(_row("layers 1,1,4,2 → 2,2,2,2", uneven, Change(layers=(2, 2, 2, 2)), even[full]))
    rows.append(_row("layers 2,2,2,2 → 1,1,4,2", even[full], Change(layers=(1, 1, 4, 2)), uneven))
    return rows


def _name(state: tuple[int, int], seen: Evidence) -> str:
    return f"{state[0]} in {slots_of(state[0], seen)} slots"


def _row(name: str, before: Evidence, change: Change, after: Evidence) -> Row:
    return Row(name, throughput(before) or 0.0, predict(before, change), throughput(after) or 0.0)


def main() -> int:
    """Print the table; always 0: the numbers are for people."""
    inside = told = 0
    print(f"{'change':<44} {'before':>7} {'predicted':>16} {'measured':>9}")
    for row in table():
        if row.predicted is None:
            print(f"{row.change:<44} {row.before:7.1f} {'withheld':>16} {row.measured:9.1f}")
            continue
        told += 1
        hit = row.predicted.low <= row.measured <= row.predicted.high
        inside += hit
        span = f"{row.predicted.low:.0f}–{row.predicted.high:.0f}"
        print(f"{row.change:<44} {row.before:7.1f} {span:>16} {row.measured:9.1f}  {'within' if hit else 'outside'}")
    print(f"{inside} of {told} within ±20 %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
