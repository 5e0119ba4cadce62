"""Which thread of a scheduler its lane shows: the main one alone, by whatever is known of it."""

from __future__ import annotations

import pytest

from ppscope.records import FrameDef, Hello, Rank, RankKey, Server, StackDef, StackSpans
from ppscope.session import Session
from ppscope.sources.stacks import split_main
from ppscope.sources.stacks_windows import ThreadSpans
from tests.fed_stream import FedStream

KEY = RankKey(0, 0, 0)
S = 1_000_000_000


@pytest.mark.parametrize(
    ("main_tid", "ns_pid", "main", "name"),
    [
        (10, None, 10, "MainThread"),
        (10, None, 10, ""),
        (10, 1, 10, "MainThread"),  # a PID namespace of its own: the window's number was translated
        (None, None, 10, ""),
        (None, 1, 1, ""),
        (None, None, 77, "MainThread"),
    ],
)
def test_the_lane_of_a_rank_is_its_main_thread_and_no_other(
    main_tid: int | None, ns_pid: int | None, main: int, name: str
) -> None:
    rank = Rank(KEY, 10, 100, "sglang::scheduler_PP0", ns_pid=ns_pid, main_tid=main_tid)
    stream = FedStream(
        Hello(1, "", "here", 0, 0, 1, "", ""),
        Server(0, 5, 1, "launch_server", "serving", (rank,), 1, 1, 1),
        FrameDef(0, "event_loop_pp", "scheduler_pp_mixin.py", 1),
        StackDef(0, (0,)),
    )
    # The other threads come first and were seen for longer.
    for tid, called, seconds in ((11, "Thread-1", 8), (12, "", 6), (main, name, 2)):
        stream.add(StackSpans(KEY, tid, called, 0, seconds * S, S // 50, [0], [seconds * S], [0]))
    session = Session(stream)
    session.poll()
    assert [(span.start_ns, span.end_ns) for span in session.spans(KEY, 0, 9 * S)] == [(0, 2 * S)]
    assert set(session.states[KEY].threads) == {11, 12, main}, "the others are kept for the list of threads"


def test_stacks_up_to_an_instant_are_of_the_seconds_before_it_and_of_nothing_after() -> None:
    rank = Rank(KEY, 10, 100, "sglang::scheduler_PP0", main_tid=10)
    stream = FedStream(
        Hello(1, "", "here", 0, 0, 1, "", ""),
        Server(0, 5, 1, "launch_server", "serving", (rank,), 1, 1, 1),
        *(FrameDef(number, f"second_{number}", "a.py", 1) for number in range(20)),
        *(StackDef(number, (number,)) for number in range(20)),
        *(StackSpans(KEY, 10, "", n * S, n * S + S, S // 50, [n * S], [n * S + S], [n]) for n in range(10)),
    )
    session = Session(stream)
    session.poll()

    def seen(until_ns: int | None) -> dict[str, float]:
        (tree,) = session.stacks(KEY, 3.0, until_ns)
        return {node.function: round(node.total * tree.seconds, 3) for node in tree.root.children}

    frozen = 9 * S + S // 2
    shown = seen(frozen)
    assert shown == {"second_6": 0.5, "second_7": 1.0, "second_8": 1.0, "second_9": 0.5}
    stream.add(*(StackSpans(KEY, 10, "", n * S, n * S + S, S // 50, [n * S], [n * S + S], [n]) for n in range(10, 20)))
    session.poll()
    assert seen(frozen) == shown
    assert set(seen(None)) == {"second_17", "second_18", "second_19"}


@pytest.mark.parametrize(
    ("ns_pid", "threads", "main"),
    [
        (None, [(11, "MainThread"), (10, "")], 10),
        (1, [(10, "MainThread"), (1, "")], 1),  # inside, 10 is the number of another thread
        (1, [(10, "worker"), (7, "MainThread")], 7),
        (None, [(11, "worker"), (12, "")], None),
    ],
)
def test_py_spys_own_numbers_are_those_of_the_targets_namespace(
    ns_pid: int | None, threads: list[tuple[int, str]], main: int | None
) -> None:
    rank = Rank(KEY, 10, 100, "sglang::scheduler_PP0", ns_pid=ns_pid, main_tid=10)
    found, others = split_main([ThreadSpans(tid, name, [], [], []) for tid, name in threads], rank)
    assert (found.tid if found is not None else None) == main
    assert [thread.tid for thread in others] == [tid for tid, _ in threads if tid != main]
