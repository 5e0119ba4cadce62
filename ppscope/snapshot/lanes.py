"""Lanes of the page that its sampled tracks do not hold: exact spans as columns, and micro-batch numbers of sampled ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ppscope.records import RankKey
from ppscope.session import Session
from ppscope.views import Span

Json = dict[str, Any]

UNIT_NS = 1000
"""Exact lanes are drawn to the microsecond; the records beside them keep what was measured."""


def lanes(session: Session, start_ns: int, end_ns: int) -> tuple[list[Json], list[Json]]:
    """(exact lanes, micro-batch marks) of all ranks. A rank whose main thread was timed has an exact lane and needs no marks."""
    exact: list[Json] = []
    marks: list[Json] = []
    for key in sorted(session.states):
        spans = session.spans(key, start_ns, end_ns)
        if any(span.provenance == "exact" for span in spans):
            exact.append(_lane(key, "host", spans, start_ns))
        else:
            marks.append(_marks(key, spans, start_ns))
        timed = session.states[key].exact
        if timed is not None and timed.gpu.extent is not None:
            exact.append(_lane(key, "gpu", timed.gpu.spans(start_ns, end_ns), start_ns))
    return exact, marks


def _rank(key: RankKey) -> list[int]:
    return list(msgspec.structs.astuple(key))


def _lane(key: RankKey, name: str, spans: Iterable[Span], start_ns: int) -> Json:
    gap: list[int] = []
    took: list[int] = []
    phase: list[int] = []
    batch: list[int] = []
    stack: list[int] = []
    sure: list[int] = []
    last = 0
    for span in spans:
        start = max(span.start_ns - start_ns, last * UNIT_NS) // UNIT_NS
        end = (span.end_ns - start_ns) // UNIT_NS
        if end <= start:
            continue
        gap.append(start - last)
        took.append(end - start)
        phase.append(span.phase)
        batch.append(-1 if span.micro_batch is None else span.micro_batch)
        stack.append(-1 if span.stack is None else span.stack)
        sure.append(int(span.provenance == "exact"))
        last = end
    packed: Json = {
        "rank": _rank(key),
        "lane": name,
        "unit_ns": UNIT_NS,
        "gap": gap,
        "took": took,
        "phase": phase,
        "micro_batch": batch,
    }
    if any(number >= 0 for number in stack):
        packed["stack"] = stack
    packed["exact"] = {"all": 1} if all(sure) else sure
    return packed


def _marks(key: RankKey, spans: list[Span], start_ns: int) -> Json:
    """`at` are the starts of spans whose micro-batch is known, from the origin and in order."""
    known = [span for span in spans if span.micro_batch is not None]
    return {
        "rank": _rank(key),
        "at": [max(span.start_ns - start_ns, 0) for span in known],
        "number": [span.micro_batch for span in known],
    }
