"""Over minutes of noisy readings every finding comes once and stays, and goes once when its cause goes; in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from ppscope.session import Session
from ppscope.snapshot.recorded import session_of
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


ALONE, FULL = replace(ONE, metrics=False), replace(HEALTHY, metrics=False)
GROWS: dict[str, list[tuple[Story, int]]] = {
    "by the log alone": [(ALONE, 20), (FULL, 80)],
    "with metrics": [(ONE, 20), (HEALTHY, 80)],
    "after a minute": [(ALONE, 70), (FULL, 60)],
    "serial, then one, then full": [(replace(SERIAL, metrics=False, graphs=True), 20), (ALONE, 20), (FULL, 60)],
    "nobody, then full": [(replace(IDLE, metrics=False), 20), (FULL, 60)],
    "again and again": [(replace(ONE, gaps=False), 10), (HEALTHY, 10)] * 6,
    "two in a slot": [(ALONE, 20), (replace(FULL, sizes=(2, 2, 2, 2)), 80)],
}


@pytest.mark.parametrize("name", GROWS)
def test_a_load_that_grows_is_not_serial_by_what_was_seen_before_it_did(name: str) -> None:
    told = GROWS[name]
    serial = changes(shown(name, told), "pipeline.serial")
    assert serial == [] or (told[0][0].sizes == SERIAL.sizes and max(serial) <= 40), serial


def test_a_recording_that_ends_soon_after_its_load_grew_is_not_serial() -> None:
    stream = Pipeline("recorded")
    for story, seconds in ((ALONE, 40), (FULL, 25)):
        for _ in range(seconds):
            stream.second(story)
    assert session_of(stream.drain()).screen().findings == ()


@pytest.mark.parametrize("metrics", [True, False])
def test_a_load_that_grows_in_one_slot_is_found_soon(metrics: bool) -> None:
    seen = shown("grows", [(replace(ONE, metrics=metrics), 25), (replace(SERIAL, metrics=metrics), 60)])
    at = changes(seen, "pipeline.serial")
    assert len(at) == 1, at
    assert 25 < at[0] <= 25 + COME_S


DRAWS = replace(HEALTHY, power_w=300.0)


@pytest.mark.parametrize(
    "told", [[(IDLE, 30), (DRAWS, 40)], [(IDLE, 24), (DRAWS, 8)] * 3, [(IDLE, 20), (DRAWS, 5)] * 3]
)
def test_gpus_that_work_since_a_moment_or_now_and_then_are_not_idle_while_serving(
    told: list[tuple[Story, int]],
) -> None:
    assert set.union(*shown("draws", told)) == set()


@pytest.mark.parametrize("before", [IDLE, HEALTHY])
def test_gpus_that_draw_little_once_the_load_is_in_one_slot_are_found(before: Story) -> None:
    at = changes(shown("one slot", [(before, 40), (SERIAL, 60)]), "gpu.idle_while_serving")
    assert len(at) == 1, at
    assert 40 < at[0] <= 80


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
