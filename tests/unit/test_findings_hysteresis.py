"""Findings appear late, clear later, and never flicker."""

from __future__ import annotations

from itertools import pairwise

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from ppscope.diagnose.hysteresis import APPEAR_NS, MISSES, Hysteresis
from ppscope.views import Finding

SECOND = 1_000_000_000


def finding(name: str, severity: str = "high", summary: str = "") -> Finding:
    return Finding(name, severity, None, summary, (), "", "sampled")


def shown(seen: list[bool], period_ns: int = SECOND) -> list[bool]:
    """Whether one finding is shown after each judgement of `seen`."""
    filtered = Hysteresis()
    return [
        bool(filtered.update([finding("a")] if found else [], at * period_ns)) for at, found in enumerate(seen, start=1)
    ]


def test_it_shows_after_two_seconds_and_clears_after_three_misses() -> None:
    assert shown([True, True, True, True, False, False, True, False, False, False]) == [
        False, False, True, True, True, True, True, True, True, False,
    ]  # fmt: skip


def test_what_comes_back_stays_longer_each_time() -> None:
    """Nine misses, then twenty-seven; three again when it was gone for minutes."""
    twice = [True] * 3 + [False] * 3
    seen = shown(
        [*twice, *[True] * 3, *[False] * 9, *[True] * 3, *[False] * 27, *[False] * 180, *[True] * 3, *[False] * 3]
    )
    changes = [at for at, (before, now) in enumerate(pairwise([False, *seen])) if before != now]
    assert changes == [2, 5, 8, 17, 20, 47, 230, 233]


@given(st.lists(st.sampled_from([True, True, False]), min_size=600, max_size=600))
def test_what_lies_on_a_threshold_changes_a_few_times_in_ten_minutes(seen: list[bool]) -> None:
    visible = shown(seen)
    assert sum(before != now for before, now in pairwise(visible)) <= 8


def test_two_judgements_two_seconds_apart_are_enough() -> None:
    assert shown([True, True], period_ns=2 * SECOND) == [False, True]


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=80))
def test_properties(seen: list[bool]) -> None:
    visible = shown(seen)
    needed = APPEAR_NS // SECOND + 1
    for at, now in enumerate(visible):
        before = visible[at - 1] if at else False
        if now and not before:
            assert all(seen[at + 1 - needed : at + 1])
            assert at + 1 >= needed
        if before and not now:
            assert not any(seen[at + 1 - MISSES : at + 1])
        if len(seen[: at + 1]) >= needed and all(seen[at + 1 - needed : at + 1]):
            assert now


def test_a_finding_whose_stage_changes_stays_one() -> None:
    filtered = Hysteresis()
    for at in range(60):
        stage = at // 4 % 2
        out = filtered.update([msgspec.structs.replace(finding("a"), stage=stage)], at * SECOND)
        assert [found.stage for found in out] == ([stage] if at >= 2 else [])


def test_the_newest_words_are_shown_and_the_gravest_first() -> None:
    filtered = Hysteresis()
    for at in range(4):
        found = [finding("b", "medium"), finding("c", "info"), finding("a", "high", f"at {at}")]
        out = filtered.update(found, at * SECOND)
    assert [f.id for f in out] == ["a", "b", "c"]
    assert out[0].summary == "at 3"
