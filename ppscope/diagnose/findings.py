"""The catalogue: what may be claimed of a server, gravest first. Every entry is a pure function of the evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from ppscope.diagnose import bubbles, draft, gpus, graphs, host, pipeline, queue
from ppscope.diagnose.evidence import Evidence
from ppscope.views import Finding

Judge = Callable[[Evidence], Finding | None]

CATALOGUE: tuple[Judge, ...] = (
    queue.queue_blocked,
    pipeline.serial,
    graphs.disabled,
    graphs.batch_over_captured,
    graphs.eager_decode,
    draft.draft_eager,
    pipeline.imbalance,
    bubbles.bubbles,
    bubbles.last_stage_sync,
    host.cpu_bound,
    gpus.throttled,
    gpus.idle_while_serving,
    gpus.spinning,
    pipeline.too_few_requests,
)
"""In the order they are shown in, within a severity. Any other `graphs.eager_leak` comes from traces alone (ppscope.trace.findings)."""
_SEVERITY = {"high": 0, "medium": 1, "info": 2}
_EXPLAINED_BY = {
    "graphs.eager_decode": {"graphs.disabled_by_flag", "graphs.disabled_by_rule", "graphs.batch_over_captured"},
    "pipeline.bubbles": {"pipeline.serial", "load.too_few_requests"},
}


def merge(judged: Sequence[Finding], traced: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings with those of a burst, gravest first.

    What both claim is the burst's, for it is exact, but for what to change in a pipeline: that takes its slots and layers, of which
    a trace says nothing. What another finding explains is not said twice.
    """
    known = {finding.id: finding for finding in judged}
    by_burst = [
        _with_remedy(finding, known.get(finding.id))
        for finding in traced
        if not known.keys() & _EXPLAINED_BY.get(finding.id, set())
    ]
    taken = {finding.id for finding in by_burst}
    found = [finding for finding in judged if finding.id not in taken] + by_burst
    return tuple(sorted(found, key=lambda finding: _SEVERITY.get(finding.severity, len(_SEVERITY))))


def _with_remedy(traced: Finding, judged: Finding | None) -> Finding:
    if judged is None or judged.stage != traced.stage or not traced.id.startswith("pipeline."):
        return traced
    return replace(traced, remedy=judged.remedy)


def judge(evidence: Evidence) -> list[Finding]:
    """Every finding the evidence bears out, gravest first. A server that serves nothing has none but a blocked queue."""
    if evidence.server.state not in ("serving", "gone"):
        return []  # of one that is gone its last seconds are judged
    found = [finding for entry in CATALOGUE if (finding := entry(evidence)) is not None]
    return sorted(found, key=lambda finding: _SEVERITY.get(finding.severity, len(_SEVERITY)))
