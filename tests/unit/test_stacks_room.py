"""Py-spy gives way where few cores are idle: less of every budget, longer windows, and it is said."""

from __future__ import annotations

import pytest

from ppscope.sources.stacks_plan import BUDGET_CORES
from ppscope.sources.stacks_room import IDLE_SHARE, LEAST_CORES, Room

SECOND = 1_000_000_000


class Idle:
    """Idle cores as told, and how often they were asked for."""

    def __init__(self, *cores: float | None) -> None:
        self.cores = list(cores)
        self.asked = 0

    def __call__(self, _now_ns: int) -> float | None:
        self.asked += 1
        return self.cores.pop(0) if len(self.cores) > 1 else self.cores[0]


def test_where_cores_are_idle_or_nothing_is_known_the_whole_budget_may_be_used() -> None:
    for known in (None, BUDGET_CORES / IDLE_SHARE, 200.0):
        room = Room(Idle(known))
        assert room.share(0) == 1.0
        assert room.idle_cores(0) == known


@pytest.mark.parametrize("idle", [1.5, 3.0, 6.0])
def test_a_small_part_of_the_idle_cores(idle: float) -> None:
    room = Room(Idle(idle))
    assert room.share(0) * BUDGET_CORES == pytest.approx(IDLE_SHARE * idle)
    assert room.idle_cores(0) == pytest.approx(idle)


def test_where_nothing_is_idle_a_little_is_still_sampled() -> None:
    assert Room(Idle(0.0)).share(0) * BUDGET_CORES == pytest.approx(LEAST_CORES)


def test_a_busy_moment_does_not_swing_it_and_all_sources_read_the_same() -> None:
    idle = Idle(4.0, 4.0, 4.0, 0.0)
    room = Room(idle)
    for second in (0, 2, 4, 6):
        for _ in range(5):
            room.share(second * SECOND)
    assert idle.asked == 4
    assert room.idle_cores(6 * SECOND) == pytest.approx(3.0)
    for second in range(8, 30, 2):
        room.share(second * SECOND)
    assert room.idle_cores(30 * SECOND) == pytest.approx(0.0)


def test_a_reading_that_fails_keeps_what_is_known() -> None:
    room = Room(Idle(2.0, None))
    room.share(0)
    assert room.idle_cores(2 * SECOND) == pytest.approx(2.0)
