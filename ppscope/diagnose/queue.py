"""Requests wait and nothing runs."""

from __future__ import annotations

from ppscope.diagnose import say
from ppscope.diagnose.evidence import Evidence
from ppscope.views import Finding

BLOCKED_S = 5.0


def queue_blocked(evidence: Evidence) -> Finding | None:
    """The queue holds requests all the time, and no forward pass was seen: no stage has a batch, or those that have wait."""
    queued = evidence.load.queued
    seen = [rank.seen_s for stage in evidence.stages for rank in stage.ranks]
    if not queued or evidence.queued_s < BLOCKED_S or evidence.active is not False or not seen:
        return None
    if evidence.load.tokens_per_s or any(stage.phases.get("frozen") for stage in evidence.stages):
        return None  # a stage that writes a trace, or is held, says so itself
    limit = say.number(evidence, "max_running_requests")
    remedy = (
        "Look at the server's log for the reason: a pause or an update of the weights is over by itself or by /continue_generation;"
        " restart it if a request is stuck."
    )
    if evidence.with_batch:
        remedy = (
            "See in the stacks where each stage waits, and in the server's log why: the pass of a very long prompt ends by itself;"
            " restart the server if its stages wait for each other."
        )
    elif limit is not None and limit < max(evidence.server.pp_size, 2):
        remedy = (
            f"Raise --max-running-requests (it is {limit}): with fewer than one request a stage a pending chunked prefill can"
            " block the queue (SGLang PR #23006)."
        )
    return Finding(
        id="server.queue_blocked",
        severity="high",
        stage=None,
        summary=f"{say.plural(queued, 'request')} queued and "
        + (
            f"no forward pass began for {say.no_pass(evidence)}: stages wait with a batch"
            if evidence.with_batch
            else "no stage has a batch"
        ),
        evidence=(
            f"the queue was above zero in every reading of {evidence.queued_s:.0f} s ({evidence.load.source})",
            f"no forward pass in the last seconds on any of {say.plural(len(evidence.stages), 'stage')} (sampled stacks)",
            *(_phases(evidence) if evidence.with_batch else ()),
        ),
        remedy=remedy,
        provenance="sampled",
    )


def _phases(evidence: Evidence) -> list[str]:
    """Where the first stages spend their time."""
    lines = []
    for stage in evidence.stages[:4]:
        most = sorted(stage.phases.items(), key=lambda pair: -pair[1])[:2]
        told = ", ".join(f"{evidence.labels.get(name, name)} {say.share(part)}" for name, part in most)
        lines.append(f"stage {stage.pp}: {told} (sampled)")
    return lines
