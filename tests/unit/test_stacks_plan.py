"""One CPU budget for all py-spy: the rate falls, ranks take turns, the budget holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.records import RankKey
from ppscope.sources.stacks_plan import (
    BUDGET_CORES,
    LONG_WINDOW_S,
    MIN_HZ,
    REST_HZ,
    WINDOW_S,
    RankLoad,
    Slot,
    plan,
    window_lengths_s,
)


def loads(stages: int, tp: int = 1, threads: int = 40, factor: float = 1.0) -> list[RankLoad]:
    return [RankLoad(RankKey(0, pp, rank), threads, factor) for pp in range(stages) for rank in range(tp)]


def cores(ranks: list[RankLoad], slots: dict[RankKey, Slot]) -> float:
    """By the figures that were measured, not by the formula that is tested: 16 ms a start, 0.37 ms a sample, 5.5 µs a thread of it."""
    total = 0.0
    for rank in ranks:
        if (slot := slots.get(rank.key)) is not None:
            sample_s = 0.00037 + 0.0000055 * rank.threads
            seconds = 0.016 + slot.rate_hz * (slot.window_s + 0.2) * sample_s
            total += rank.factor * seconds / slot.window_s
    return total


def test_a_small_server_gets_what_was_asked() -> None:
    assert {slot.rate_hz for slot in plan(loads(2, threads=20), 50).values()} == {50}


def test_eight_ranks_of_forty_threads_are_all_sampled_near_the_full_rate() -> None:
    slots = plan(loads(8), 50)
    assert len(slots) == 8
    assert all(slot.rate_hz >= 35 for slot in slots.values())


def test_many_threads_lower_the_rate() -> None:
    rates = [min(slot.rate_hz for slot in plan(loads(8, threads=threads), 50).values()) for threads in (5, 100, 512)]
    assert rates == sorted(set(rates), reverse=True)


def test_first_tensor_ranks_come_first_and_the_others_are_slower() -> None:
    slots = plan(loads(8, tp=2), 50)
    lead = min(slots[RankKey(0, pp, 0)].rate_hz for pp in range(8))
    others = [slot.rate_hz for key, slot in slots.items() if key.tp]
    assert lead >= MIN_HZ
    assert all(rate <= min(lead, REST_HZ) for rate in others)


def test_ranks_that_do_not_fit_take_turns() -> None:
    ranks = loads(16, threads=400, factor=3.0)
    seen = set()
    for turn in range(16):
        slots = plan(ranks, 50, turn=turn)
        assert 1 <= len(slots) < 16
        seen |= set(slots)
    assert len(seen) == 16


@given(
    stages=st.integers(1, 16), tp=st.integers(1, 8), threads=st.integers(1, 500), factor=st.floats(0.2, 5),
    requested=st.floats(1, 200), turn=st.integers(0, 99),
)  # fmt: skip
def test_the_budget_holds(stages: int, tp: int, threads: int, factor: float, requested: float, turn: int) -> None:
    ranks = loads(stages, tp, threads, factor)
    slots = plan(ranks, requested, turn=turn)
    assert slots
    assert all(1 <= slot.rate_hz <= max(1, requested) for slot in slots.values())
    if len(slots) > 1:
        assert cores(ranks, slots) <= BUDGET_CORES * 1.0001


@pytest.mark.parametrize("requested", [0.3, 1, 5])
def test_a_low_request_is_obeyed(requested: float) -> None:
    assert {slot.rate_hz for slot in plan(loads(4), requested).values()} == {max(1, int(requested))}


@given(
    stages=st.integers(1, 6), tp=st.integers(1, 4), threads=st.integers(1, 500), factor=st.floats(0.2, 5),
    budget=st.floats(0.016, 0.34), dearer=st.floats(1, 4),
)  # fmt: skip
def test_every_rank_comes_to_its_turn_however_little_there_is(
    stages: int, tp: int, threads: int, factor: float, budget: float, dearer: float
) -> None:
    ranks = [
        replace(load, factor=factor * (dearer if place % 3 else 1.0))
        for place, load in enumerate(loads(stages, tp, threads, factor))
    ]
    seen: set[RankKey] = set()
    for turn in range(5 * len(ranks) + 8):
        seen |= set(plan(ranks, 50, budget, turn, window_lengths_s(0.2)))
    assert seen == {load.key for load in ranks}


def test_where_there_is_little_room_windows_are_long_whatever_the_rate() -> None:
    assert window_lengths_s(1.0) == (WINDOW_S, LONG_WINDOW_S)
    assert window_lengths_s(0.99) == (LONG_WINDOW_S,)
    slots = plan(loads(2), 50, lengths_s=window_lengths_s(0.2))
    assert set(slots.values()) == {Slot(50, LONG_WINDOW_S)}


def test_no_ranks_no_plan() -> None:
    assert plan([], 50) == {}
