"""Over minutes of noisy readings every finding comes once and stays, and goes once when its cause goes; in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from ppscope.session import Session
from tests.unit.pipeline_story import HEALTHY, IDLE, ONE, SERIAL, STORIES, Pipeline, Story

LONG_S = 100
COME_S = 20
"""A finding is there by then."""
GONE_S = 75
"""Evidence of up to a minute ago still counts; after that a finding whose cause is gone is gone too."""


def shown(seed: str, told: Sequence[tuple[Story, int]]) -> list[set[str]]:
    """The findings shown after each second of a live view of these stories, one after the other."""
    stream = Pipeline(seed)
    session = Session(stream, clock=lambda: stream.at_ns)
    seen = []
    for story, seconds in told:
        for _ in range(seconds):
            stream.second(story)
            session.poll()
            seen.append({finding.id for finding in session.screen().findings})
    return seen


def changes(seen: Sequence[set[str]], name: str) -> list[int]:
    """After how many seconds a finding came, went, came again …"""
    present = [False, *(name in ids for ids in seen)]
    return [second for second, (before, now) in enumerate(pairwise(present), start=1) if before != now]


@pytest.mark.parametrize("name", STORIES)
def test_every_finding_comes_once_and_stays(name: str) -> None:
    story, expected = STORIES[name]
    seen = shown(name, [(story, LONG_S)])
    came = {found: changes(seen, found) for found in set.union(*seen) | expected}
    assert all(len(at) == 1 and at[0] <= COME_S for at in came.values()), came
    assert set(came) == expected


LOADS: dict[str, tuple[Story, Story, set[str]]] = {
    "clients leave": (replace(HEALTHY, sizes=(2, 2, 2, 2)), ONE, {"load.too_few_requests"}),
    "as many as slots, then one": (replace(HEALTHY, sizes=(1, 1, 1, 1)), ONE, {"load.too_few_requests"}),
    "spread, then in one slot": (
        replace(SERIAL, sizes=(2, 2, 2, 2), tokens_per_s=90.0), SERIAL, {"pipeline.serial"},
    ),
    "nobody, then blocked": (IDLE, replace(IDLE, queued=3), {"server.queue_blocked"}),
    "cool, then throttled": (HEALTHY, replace(HEALTHY, throttled=0.7), {"gpu.throttled"}),
    "even, then one stage slow": (
        replace(HEALTHY, busy=(0.94,) * 4), replace(HEALTHY, busy=(0.4, 0.4, 0.95, 0.4)), {"pipeline.imbalance"},
    ),
}  # fmt: skip
"""Before, meanwhile, and what is found meanwhile alone."""


@pytest.mark.parametrize("name", LOADS)
def test_a_load_that_changes_is_told_once_and_cleared_once(name: str) -> None:
    before, meanwhile, expected = LOADS[name]
    seen = shown(name, [(before, 45), (meanwhile, 80), (before, 100)])
    for found in expected:
        at = changes(seen, found)
        assert len(at) == 2, (found, at)
        assert 45 < at[0] <= 45 + GONE_S
        assert 125 < at[1] <= 125 + GONE_S
    others = {found: at for found in set.union(*seen) - expected if len(at := changes(seen, found)) > 1}
    assert not others
