"""A session fed with any valid records, in any order, with any numbers: it never raises, and what it keeps is bounded."""

from __future__ import annotations

import typing

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ppscope.collect.stream import MAGIC, encode, records_of
from ppscope.records import (
    AnyRecord,
    FrameDef,
    GpuSample,
    Hello,
    HostSamples,
    LoopSample,
    RankKey,
    Server,
    StackDef,
    StackSpans,
)
from ppscope.session import Session
from tests.unit.test_session_troubles import SECOND, START, FakeStream, server

KINDS: tuple[type[AnyRecord], ...] = typing.get_args(AnyRecord)
RANKS = st.builds(RankKey, st.integers(0, 1), st.integers(0, 3), st.integers(0, 1))
AROUND = st.integers(START - 5 * SECOND, START + 900 * SECOND)
INTS = st.one_of(st.integers(0, 5), AROUND, st.integers(-(2**63), 2**63 - 1))
FLOATS = st.one_of(st.floats(0, 1), st.floats())
WORDS = ["ok", "dead", "decode", "log", "metrics", "stopped", "gone", "sglang:fwd_occupancy"]
TEXTS = st.one_of(st.sampled_from(WORDS), st.text(max_size=8))


def values_of(kind: object) -> st.SearchStrategy[object]:
    """A strategy for a field's type, with numbers that are near enough to each other to matter."""
    plain: dict[object, st.SearchStrategy[object]] = {
        int: INTS, float: FLOATS, str: TEXTS, bool: st.booleans(), bytes: st.binary(max_size=8), type(None): st.none(),
        RankKey: RANKS, object: st.one_of(INTS, TEXTS, st.none()),
    }  # fmt: skip
    if kind in plain:
        return plain[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=4)
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return st.lists(values_of(arguments[0]), max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return st.builds(kind, **{name: values_of(hint) for name, hint in typing.get_type_hints(kind).items()})
    return st.one_of(*map(values_of, arguments))


ANY = st.one_of(*(values_of(kind) for kind in KINDS))


def fed(records: list[AnyRecord]) -> Session:
    stream = FakeStream()
    session = Session(stream, clock=lambda: START + SECOND)
    stream.records = list(records)
    session.poll()
    return session


def draw(session: Session) -> None:
    """Ask for everything that the screen asks for."""
    screen = session.screen()
    oldest, newest = session.extent()
    assert oldest <= newest
    for rank in [row.key for stage in screen.stages for row in stage.ranks]:
        session.lanes(newest - 10 * SECOND, newest, 40, [rank])
        list(session.spans(rank, newest - SECOND, newest))
        session.stacks(rank, 10.0)
    msgspec.msgpack.encode(screen)
    session.ended()


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(ANY, max_size=12), st.booleans())
def test_any_records_in_any_order(records: list[AnyRecord], begun: bool) -> None:
    start: list[AnyRecord] = [Hello(1, "0.1.0", "box", START, START, 7), server()] if begun else []
    draw(fed([*start, *records]))


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(ANY, min_size=1, max_size=6))
def test_what_goes_over_the_wire_comes_back_whole(records: list[AnyRecord]) -> None:
    kept = [record for record in records if all(abs(n) < 2**63 for n in numbers(msgspec.to_builtins(record)))]
    again, reader = records_of(MAGIC + b"".join(map(encode, kept)))
    assert len(again) + reader.skipped == len(kept)
    draw(fed(again))


def numbers(value: object) -> list[int]:
    if isinstance(value, dict):
        return [n for part in value.values() for n in numbers(part)]
    if isinstance(value, list | tuple):
        return [n for part in value for n in numbers(part)]
    return [value] if isinstance(value, int) else []


def test_an_hour_of_everything_keeps_ten_minutes() -> None:
    """Spans, dumps, run times and readings of one rank at ten times the usual density."""
    stream = FakeStream()
    now = START
    session = Session(stream, clock=lambda: now)
    stream.records = [Hello(1, "0.1.0", "box", START, START, 7), server(stages=2)]
    stream.records += [FrameDef(1, "forward", "/sglang/model_runner.py", 1), StackDef(1, (1,))]
    rank = RankKey(0, 0, 0)
    sizes = []
    for second in range(0, 3_600, 4):
        now = START + second * SECOND
        starts = list(range(now, now + 4 * SECOND, SECOND // 20))
        ends = [start + SECOND // 25 for start in starts]
        stream.records += [
            StackSpans(rank, 51, "MainThread", now, now + 4 * SECOND, 1, starts, ends, [1] * len(starts)),
            LoopSample(rank, now, 1, 1, mb_id=0, next_mb_id=1),
            HostSamples(rank, 51, starts, starts, starts, "R" * len(starts)),
            GpuSample(0, now, power_w=90.0),
        ]
        session.poll()
        sizes.append(len(session.states[rank].timeline))
    state = session.states[rank]
    assert session.extent()[0] >= now - 900 * SECOND
    assert max(sizes[-200:]) <= max(sizes[: len(sizes) // 2])
    assert len(state.threads[51]) < 2_000
    assert isinstance(session.server, Server)
