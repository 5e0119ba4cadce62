"""A source that tells nothing – no log, no metrics, HTTP refused, no stacks … – lowers what is claimed, and nothing breaks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from ppscope.records import (
    AnyRecord,
    BatchLog,
    GpuDevice,
    GpuSample,
    HostSamples,
    LoadSample,
    LoopSample,
    Metric,
    Settings,
    StackSpans,
)
from ppscope.session import Session
from ppscope.views import Finding
from tests.unit.pipeline_story import STORIES, Pipeline

SECONDS = 20
STRENGTH = {"inferred": 0, "sampled": 1, "exact": 2}
SILENT: dict[str, Callable[[AnyRecord], bool]] = {
    "nobody": lambda record: False,
    "log": lambda record: isinstance(record, BatchLog),
    "metrics": lambda record: isinstance(record, Metric | LoadSample),
    "settings": lambda record: isinstance(record, Settings) and record.origin == "resolved",
    "command line": lambda record: isinstance(record, Settings) and record.origin == "requested",
    "all of HTTP": lambda record: (
        isinstance(record, Metric | LoadSample) or (isinstance(record, Settings) and record.origin == "resolved")
    ),
    "GPUs": lambda record: isinstance(record, GpuSample | GpuDevice),
    "dumps": lambda record: isinstance(record, LoopSample),
    "stacks": lambda record: isinstance(record, StackSpans),
    "host": lambda record: isinstance(record, HostSamples),
}
"""Who tells nothing, and which records are missing then."""
WEAKER: dict[str, set[str]] = {"graphs.batch_over_captured": {"graphs.eager_decode"}}
"""What the same facts are called where a part of them is not known."""
TOLD = (
    "serial", "eager", "imbalanced", "spinning", "throttled", "slow links", "busy host", "blocked", "one client",
)  # fmt: skip


@cache
def found(name: str, silent: str) -> dict[str, Finding]:
    """The findings of a story of which one source tells nothing."""
    stream = Pipeline(name)
    session = Session(stream, clock=lambda: stream.at_ns)
    for _ in range(SECONDS):
        stream.second(STORIES[name][0])
        stream.waiting = [record for record in stream.waiting if not SILENT[silent](record)]
        session.poll()
    assert session.damaged == 0, session.damage
    return {finding.id: finding for finding in session.screen().findings}


@pytest.mark.parametrize("name", TOLD)
def test_a_silent_source_only_lowers_what_is_claimed(name: str) -> None:
    whole = found(name, "nobody")
    assert set(whole) == STORIES[name][1]
    allowed = set(whole).union(*(WEAKER.get(known, set()) for known in whole))
    for silent in SILENT:
        claimed = found(name, silent)
        assert set(claimed) <= allowed, silent
        for known, finding in claimed.items():
            if known in whole:
                assert STRENGTH[finding.provenance] <= STRENGTH[whole[known].provenance], (silent, known)
            assert finding.evidence, (silent, known)
            assert "None" not in " ".join((finding.summary, *finding.evidence, finding.remedy)), (silent, known)


NEEDS = {
    "pipeline.serial": {"dumps"},
    "graphs.batch_over_captured": {"settings", "all of HTTP"},
    "pipeline.imbalance": {"metrics", "all of HTTP"},
    "gpu.throttled": {"GPUs", "stacks"},
    "gpu.spinning": {"GPUs", "stacks"},
    "pipeline.bubbles": {"metrics", "dumps", "stacks", "all of HTTP"},
    "host.cpu_bound": {"host", "GPUs", "stacks"},
    "server.queue_blocked": {"metrics", "stacks", "all of HTTP"},
}
"""Without these a finding cannot be claimed."""


@pytest.mark.parametrize("needed", NEEDS)
def test_nothing_is_claimed_without_what_it_rests_on(needed: str) -> None:
    name = next(name for name in TOLD if needed in STORIES[name][1])
    for silent in sorted(NEEDS[needed]):
        assert needed not in found(name, silent), silent
