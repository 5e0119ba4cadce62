"""Samples that py-spy gave up: counted from its last words, and given back to the phases in which a stack moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.records import RankKey, StackSpans
from ppscope.session.missed import Missed
from ppscope.sources.stacks_windows import failed_share
from ppscope.target.phases import PhaseTable

STYLES = PhaseTable.load().styles
WORK = [index for index, style in enumerate(STYLES) if style.kind == "work"]
WAIT = [index for index, style in enumerate(STYLES) if style.kind == "wait"]
S = 1_000_000_000


def window(start_s: float, end_s: float, failed: float | None) -> StackSpans:
    start, end = int(start_s * S), int(end_s * S)
    return StackSpans(RankKey(0, 0, 0), 1, "MainThread", start, end, S // 50, [start], [end], [0], failed=failed)


@pytest.mark.parametrize(
    ("said", "share"),
    [
        (b"py-spy> Wrote chrome trace to 'x'. Samples: 1394 Errors: 52\npy-spy> Visit", 52 / 750),
        (b"Samples: 10 Errors: 0", 0.0),
        (b"Samples: 10 Errors: 999999", 0.5),
        (b"Samples: 10", None),
        (b"", None),
        (b"\xff Errors: -3", None),
    ],
)
def test_py_spys_last_words(said: bytes, share: float | None) -> None:
    assert failed_share(said, 15_000_000, 50) == (pytest.approx(share) if share is not None else None)


def test_a_window_without_time_says_nothing() -> None:
    assert failed_share(b"Errors: 3", 0, 50) is None


def test_work_gets_back_what_was_given_up() -> None:
    missed = Missed(STYLES)
    missed.add(window(0, 10, 0.1))
    # Truth: 30 % work. A tenth of all samples, all of them in work, was given up; what is left says 2/9.
    times = missed.corrected({WORK[0]: 2 * S, WAIT[0]: 7 * S}, 0, 10 * S)
    assert times[WORK[0]] / sum(times.values()) == pytest.approx(0.3)


def test_only_the_windows_at_hand_count() -> None:
    missed = Missed(STYLES)
    for start in range(10):
        missed.add(window(start, start + 1, 0.2 if start < 5 else None))
    assert missed.share(0, 5 * S) == pytest.approx(0.2)
    assert missed.share(5 * S, 10 * S) == 0
    assert missed.share(4 * S, 6 * S) == pytest.approx(0.1)
    assert missed.share(S, S) == 0


def test_what_two_windows_have_seen_counts_once() -> None:
    missed = Missed(STYLES)
    for start in range(10):
        missed.add(window(start - 0.2, start + 1, 0.2))
    assert missed.share(0, 10 * S) == pytest.approx(0.2)
    missed.add(window(9.8, 11, None))
    assert missed.share(9 * S, 11 * S) == pytest.approx(0.1), "the window before has seen the overlap"


def test_time_in_which_nothing_was_sampled_hides_nothing() -> None:
    missed = Missed(STYLES)
    missed.add(window(0, 2, 0.2))
    assert missed.share(-28 * S, 2 * S) == pytest.approx(0.2)
    missed.add(window(8, 10, 0.4))
    assert missed.share(0, 10 * S) == pytest.approx(0.3)


@given(
    st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3), st.none() | st.floats(0, 0.9)), min_size=1, max_size=30),
    st.floats(0, 90),
    st.floats(0, 90),
)
def test_a_share_lies_between_those_of_its_windows(
    steps: list[tuple[float, float, float | None]], start_s: float, end_s: float
) -> None:
    missed = Missed(STYLES)
    at = 0.0
    for step, length, failed in steps:
        at += step
        missed.add(window(at, at + length, failed))
    known = [failed or 0.0 for _, _, failed in steps]
    share = missed.share(int(start_s * S), int(end_s * S))
    assert share == 0 or min(known) - 1e-9 <= share <= max(known) + 1e-9


@given(st.dictionaries(st.integers(0, len(STYLES) - 1), st.integers(0, 10**10)), st.floats(0, 1))
def test_the_sum_stays_and_no_phase_changes_sides(times: dict[int, int], share: float) -> None:
    missed = Missed(STYLES)
    missed.add(window(0, 10, share))
    after = missed.corrected(times, 0, 10 * S)
    assert after.keys() == times.keys()
    assert sum(after.values()) == pytest.approx(sum(times.values()), abs=len(times) + 1)
    assert all(took >= 0 for took in after.values())
    moving = sum(times[phase] for phase in times if phase in WORK)
    if moving:
        assert all(after[phase] <= times[phase] for phase in times if phase not in WORK)


@pytest.mark.parametrize("failed", [float("nan"), float("inf"), float("-inf"), -1.0, 7.0])
def test_a_share_that_is_none_spoils_nothing(failed: float) -> None:
    missed = Missed(STYLES)
    missed.add(window(0, 10, failed))
    assert 0.0 <= missed.share(0, 10 * S) <= 0.9
    times = missed.corrected({WORK[0]: 2 * S, WAIT[0]: 7 * S}, 0, 10 * S)
    assert sum(times.values()) == pytest.approx(9 * S, abs=2)
