"""py-spy's windows: read right, and never badly enough to draw a wrong bar."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.sources.stacks_chrometrace import ChrometraceError, ThreadTrace, base_bounds, parse_window
from ppscope.sources.stacks_intern import Frame
from ppscope.sources.stacks_windows import ThreadSpans, clip, place, sound

ROOT = ("<module>", "main.py", 1)
A = ("a", "x.py", 10)
B = ("b", "x.py", 20)


def event(ph: str, ts: int, frame: tuple[str, str, int], tid: int = 7) -> dict[str, Any]:
    return {
        "args": {"filename": frame[1], "line": frame[2]},
        "cat": "py-spy",
        "name": frame[0],
        "ph": ph,
        "pid": 1,
        "tid": tid,
        "ts": ts,
    }


def thread_frame(tid: int, name: str) -> tuple[str, str, int]:
    return (f"thread ({tid}): {name}", "", 0)


def trace(*events: dict[str, Any]) -> bytes:
    return json.dumps(list(events)).encode()


def test_a_stack_lasts_until_the_sample_that_sees_another() -> None:
    data = trace(
        event("B", 100, thread_frame(42, "MainThread")), event("B", 100, ROOT), event("B", 100, A),
        event("E", 300, A), event("B", 300, B),
        event("E", 700, B), event("E", 700, ROOT), event("E", 700, thread_frame(42, "MainThread")),
    )  # fmt: skip
    window = parse_window(data)
    assert (window.first_us, window.last_us) == (100, 700)
    [thread] = window.threads
    assert (thread.tid, thread.name) == (42, "MainThread")
    assert list(zip(thread.starts_us, thread.ends_us, thread.stacks, strict=True)) == [
        (100, 300, (ROOT, A)),
        (300, 700, (ROOT, B)),
    ]


def test_newer_pyspy_names_threads_in_metadata_and_numbers_them_anew() -> None:
    meta = {
        "args": {"filename": "", "name": "140: x"},
        "cat": "py-spy",
        "name": "thread_name",
        "ph": "M",
        "pid": 1,
        "tid": 0,
        "ts": 0,
    }
    window = parse_window(trace(meta, event("B", 5, A, 0), event("E", 9, A, 0)))
    assert window.first_us == 5
    assert window.threads[0].stacks == [(A,)]


@pytest.mark.parametrize(
    ("name", "tid", "said"),
    [
        ("thread (0x7f00): w", 0x7F00, "w"),
        ("thread (12)", 12, ""),
        ("thread (12): a): b", 12, "a): b"),
        ("thread x", None, ""),
    ],
)
def test_thread_frames(name: str, tid: int | None, said: str) -> None:
    [thread] = parse_window(trace(event("B", 1, (name, "", 0)), event("B", 1, A), event("E", 9, A))).threads
    assert (thread.tid, thread.name) == (tid, said)
    assert thread.stacks[0][-1] == A
    assert len(thread.stacks[0]) == (2 if tid is None else 1)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[", b"{}", b"null", b"[1]", b'[{"name":"a"}]', b'[{"name":"a","ph":"B","tid":1,"ts":-1}]', b"\xff\xfe",
        b'[{"name":"a","ph":"B","tid":1,"ts":1e30}]', b"[" * 5000,
    ],
)  # fmt: skip
def test_damage_is_one_clear_line(data: bytes) -> None:
    with pytest.raises(ChrometraceError) as caught:
        parse_window(data)
    assert "\n" not in str(caught.value)


EVENTS = st.lists(
    st.builds(
        event,
        st.sampled_from("BBEXM"),
        st.integers(0, 5000),
        st.sampled_from([A, B, ROOT, thread_frame(3, "t"), ("", "", 0)]),
        st.integers(0, 2),
    ),
    max_size=60,
)


def assert_spans(thread: ThreadTrace, first: int, last: int) -> None:
    edge = first
    for start, end, stack in zip(thread.starts_us, thread.ends_us, thread.stacks, strict=True):
        assert edge <= start < end <= last
        assert isinstance(stack, tuple)
        edge = end


@given(EVENTS)
def test_spans_are_ordered_disjoint_and_inside_whatever_the_events_say(events: list[dict[str, Any]]) -> None:
    window = parse_window(trace(*events))
    for thread in window.threads:
        assert window.first_us is not None
        assert window.last_us is not None
        assert_spans(thread, window.first_us, window.last_us)


@given(EVENTS, st.integers(0, 4000), st.binary(max_size=3))
def test_damaged_files_are_refused_or_read_never_worse(events: list[dict[str, Any]], at: int, junk: bytes) -> None:
    data = trace(*events)
    try:
        window = parse_window(data[:at] + junk + data[at + 2 :])
    except ChrometraceError:
        return
    for thread in window.threads:
        assert_spans(thread, window.first_us or 0, window.last_us or 0)


@given(
    before=st.integers(0, 10**9), launch=st.integers(0, 10**8), run_us=st.integers(0, 10**6), ending=st.integers(0, 10**8),
    interrupt=st.none() | st.integers(0, 10**8),
)  # fmt: skip
def test_the_clock_lies_between_its_bounds_and_the_error_covers_the_truth(
    before: int, launch: int, run_us: int, ending: int, interrupt: int | None
) -> None:
    base = before + launch
    done = base + run_us * 1000 + ending
    interrupted = None if interrupt is None else base + run_us * 1000 - min(interrupt, run_us * 1000)
    guess, error = base_bounds(before, interrupted, done, run_us)
    assert abs(guess - base) <= error + 1
    assert guess >= before


def test_an_interrupt_that_came_after_the_end_is_no_bound() -> None:
    assert base_bounds(0, 10_000_000, 5_000_000, 4000) == base_bounds(0, None, 5_000_000, 4000)


SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=20)


def spans_of(parts: list[tuple[int, int]], stacks: list[tuple[Frame, ...]] | None = None) -> ThreadSpans:
    starts, ends, now = [], [], 0
    for gap, length in parts:
        starts.append(now + gap)
        now += gap + length
        ends.append(now)
    return ThreadSpans(1, "MainThread", starts, ends, stacks or [(ROOT, A)] * len(parts))


@given(SPANS, st.integers(0, 600))
def test_overlapping_windows_say_nothing_twice_and_lose_nothing(parts: list[tuple[int, int]], cut: int) -> None:
    spans = spans_of(parts)
    late = clip(spans, cut)
    assert all(cut <= start < end for start, end in zip(late.starts_ns, late.ends_ns, strict=True))
    expected = sum(max(0, end - max(start, cut)) for start, end in zip(spans.starts_ns, spans.ends_ns, strict=True))
    assert sum(late.ends_ns) - sum(late.starts_ns) == expected


def test_spans_end_with_their_window() -> None:
    thread = ThreadTrace(1, "t", [0, 10], [10, 20], [(A,), (B,)])
    placed = place(thread, base_ns=1000, end_ns=16_000)
    assert (placed.starts_ns, placed.ends_ns) == ([1000, 11_000], [11_000, 16_000])


def test_torn_stacks_of_the_main_thread_are_not_seen_time() -> None:
    loop: tuple[Frame, ...] = (ROOT, ("event_loop_pp", "m.py", 1))
    impossible = (*loop, ("get_next_batch_to_run", "s.py", 1), ("point_to_point_pyobj", "c.py", 2))
    cut_off: tuple[Frame, ...] = (("forward", "llama.py", 1),)
    kept = sound(spans_of([(0, 50), (0, 5), (0, 5), (0, 5), (0, 40)], [loop, impossible, cut_off, (), loop]))
    assert kept.stacks == [loop, loop]
    assert (kept.starts_ns, kept.ends_ns) == ([0, 65], [50, 105])
