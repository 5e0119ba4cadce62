"""What py-spy really used bounds what is planned next."""

from __future__ import annotations

import pytest

from ppscope.sources.stacks_spending import LOOK_BACK_NS, LOWEST_SHARE, Spending

SECOND = 1_000_000_000
BUDGET = 0.34


def lived(
    dearer: float, seconds: int, spending: Spending | None = None, since: int = 0
) -> tuple[Spending, list[float]]:
    """A plan every two seconds, and windows that cost so many times what was planned; what was used, second by second."""
    spending = Spending() if spending is None else spending
    planned, used = BUDGET, []
    for second in range(since, since + seconds):
        now = second * SECOND
        if second % 2 == 0:
            planned = spending.to_plan(now, BUDGET)
        spending.add(now, planned * dearer)
        used.append(planned * dearer)
    return spending, used


@pytest.mark.parametrize("dearer", [1.1, 1.25, 1.6, 2.2])
def test_windows_dearer_than_their_model_come_back_to_the_budget_and_stay(dearer: float) -> None:
    _, used = lived(dearer, 240)
    assert used[0] > BUDGET
    settled = used[120:]
    assert sum(settled) / len(settled) == pytest.approx(BUDGET, rel=0.06)
    assert max(settled) < 1.12 * BUDGET


def test_nothing_is_cut_while_the_budget_holds_or_before_enough_was_seen() -> None:
    spending, used = lived(0.9, 60)
    assert {round(cores, 6) for cores in used} == {round(0.9 * BUDGET, 6)}
    early = Spending()
    early.add(0, 99.0)
    early.add(SECOND, 99.0)
    assert early.to_plan(LOOK_BACK_NS - 1, BUDGET) == BUDGET
    assert early.cores(LOOK_BACK_NS - 1) is None
    assert spending.cores(60 * SECOND) == pytest.approx(0.9 * BUDGET, rel=0.1)


def test_a_machine_that_is_free_again_gets_the_whole_budget_again() -> None:
    spending, crowded = lived(2.0, 120)
    assert crowded[-1] == pytest.approx(BUDGET, rel=0.12)
    _, free = lived(0.8, 120, spending, since=120)
    assert free[-1] == pytest.approx(0.8 * BUDGET, rel=0.01)


def test_something_is_always_left_to_plan_with() -> None:
    spending, _ = lived(50.0, 300)
    assert spending.to_plan(300 * SECOND, BUDGET) == pytest.approx(LOWEST_SHARE * BUDGET)


def test_a_budget_that_falls_is_obeyed_at_once_and_what_was_used_before_is_no_overspending() -> None:
    spending = Spending()
    planned: list[float] = []
    for second in range(120):
        budget = BUDGET if second < 60 else BUDGET / 8
        if second % 2 == 0:
            planned.append(spending.to_plan(second * SECOND, budget))
        # A window is booked when it ends, four seconds after it was planned.
        spending.add(second * SECOND, planned[max(len(planned) - 3, 0)])
    assert planned[29] == pytest.approx(BUDGET)
    assert planned[30] == pytest.approx(BUDGET / 8)
    assert min(planned) > 0.8 * BUDGET / 8
    assert planned[-1] == pytest.approx(BUDGET / 8)
