"""The table of the what-if bench, from looks that are made up."""

from __future__ import annotations

import msgspec
import pytest

from ppscope.diagnose.whatif import Change
from ppscope.views import Occupancy
from tests.bench.whatif import EVEN, STATES, UNEVEN, Look, State, change, changes, markdown
from tests.unit.findings_tools import evidence, load, server, stages


def test_prompts_of_one_message_fill_slot_after_slot() -> None:
    sizes = [(1, 8), (8, 8), (8, 4), (8, 2), (16, 4), (40, 2)]
    assert [State(EVEN, *of).slots for of in sizes] == [1, 1, 2, 4, 4, 4]


def test_a_change_names_only_what_differs() -> None:
    assert change(State(EVEN, 8, 8), State(EVEN, 8, 2)) == Change(slots_used=4)
    assert change(State(EVEN, 8, 2), State(EVEN, 16, 4)) == Change(requests=16)
    assert change(State(EVEN, 1, 8), State(EVEN, 8, 2)) == Change(slots_used=4, requests=8)
    assert change(State(UNEVEN, 8, 2), State(EVEN, 8, 2)) == Change(layers=EVEN)


def test_slots_requests_and_the_split_are_all_changed_and_never_two_servers_at_once() -> None:
    every = changes()
    assert len(every) == len(set(every))
    assert all(change(before, after) != Change() for before, after in every)
    assert sum(before.layers != after.layers for before, after in every) == 2 * len(STATES[UNEVEN])
    for before, after in every:
        named = change(before, after)
        assert named.layers is None or (named.slots_used, named.requests) == (None, None)


@pytest.mark.parametrize(("measured", "said"), [(170.0, "within"), (230.0, "within"), (150.0, "outside")])
def test_the_median_measured_is_held_against_the_median_predicted(measured: float, said: str) -> None:
    """Four stages at work a quarter each: more requests in the one slot are predicted to go as fast."""
    of = evidence(
        stages=stages([0.25] * 4, phases={"wait_gpu": 1.0}), server=server(4), load=load(8, 0, 200.0), micro_batch=8.0,
        occupancy=Occupancy(4, 1.0, 50, "sampled"),
    )  # fmt: skip
    blind = msgspec.structs.replace(of, micro_batch=None)
    before, after = State(EVEN, 8, 8), State(EVEN, 8, 4)
    looks = {
        before: [Look(of, 200.0, 0.0), Look(of, 204.0, 0.0), Look(blind, 190.0, 0.0)],
        after: [Look(blind, measured, 0.0), Look(blind, 10.0, 0.0), Look(blind, 900.0, 0.0)],
    }
    table = markdown(looks)
    row = f"| 8 in 1 slot → 8 in 2 slots | 200 (190–204) | 160–240 | {measured:.0f} (10–900) | {said} |"
    assert row in table.splitlines()
    assert "| 8 in 2 slots → 8 in 1 slot | " + f"{measured:.0f} (10–900) | withheld | 200 (190–204) | – |" in table
    hits = int(said == "within")
    assert table.endswith(
        f"{hits} of 1 changes within ±20 % by the medians, {2 * hits} of 2 single predictions; 4 withheld.\n"
    )
