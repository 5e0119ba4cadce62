"""Idle time of stages that should be busy, where it is known how busy they are."""

from __future__ import annotations

from ppscope.diagnose import say
from ppscope.diagnose.crowding import crowding
from ppscope.diagnose.evidence import Evidence
from ppscope.diagnose.pipeline import IMBALANCE, imbalance_ratio
from ppscope.diagnose.predict import predicted
from ppscope.diagnose.whatif import Change
from ppscope.views import Finding

BUBBLE = 0.4
FULL = 0.8
SYNC = 0.1
_WORK = ("schedule", "postprocess", "intake", "prepare", "graph_input", "sample", "replay", "eager", "send")
_STARVED = ("recv_activations", "recv_outputs", "wait_requests")


def _full(evidence: Evidence) -> bool:
    """Whether requests fill the slots: then bubbles are not the load's fault."""
    slots, mean = evidence.occupancy.slots, evidence.occupancy.mean
    return slots is not None and mean is not None and mean >= FULL * slots


def bubbles(evidence: Evidence) -> Finding | None:
    """The slots are full and the stages even, yet they are idle for much of the time."""
    busy, ratio = say.busy_by_stage(evidence), imbalance_ratio(evidence)
    if busy is None or ratio is None or ratio >= IMBALANCE or not _full(evidence) or evidence.active is not True:
        return None
    idle = 1 - sum(busy.values()) / len(busy)
    if idle < BUBBLE or evidence.server.device == "cpu":
        return None
    waits: dict[str, float] = {}
    for stage in evidence.stages:
        for name, share in stage.phases.items():
            waits[name] = waits.get(name, 0.0) + share / len(evidence.stages)
    top = sorted(waits.items(), key=lambda pair: -pair[1])[:3]
    return Finding(
        id="pipeline.bubbles",
        severity="medium",
        stage=None,
        summary=f"stages are idle {say.share(idle)} of the time although every slot holds requests",
        evidence=(
            "busy share by stage: " + ", ".join(f"{pp}: {say.share(share)}" for pp, share in busy.items())
            + f" ({say.busy_source(evidence)})",
            f"occupied slots {evidence.occupancy.mean:.1f} of {evidence.occupancy.slots} (sampled)",
            "host: " + ", ".join(f"{name} {say.share(share)}" for name, share in top) + " (sampled, mean of stages)",
            *crowding(evidence),
        ),
        remedy="See where the schedulers wait: the stacks panel, or a short trace (ppscope trace DIR) for the kernels between.",
        provenance="sampled",
    )  # fmt: skip


def last_stage_sync(evidence: Evidence) -> Finding | None:
    """At async depth 0 the last stage cannot prepare the next micro-batch while its GPU computes, and here it sets the pace."""
    busy = say.busy_by_stage(evidence)
    if busy is None or len(busy) < 2 or evidence.server.device == "cpu" or not _full(evidence):
        return None
    version, depth = say.version(evidence), say.number(evidence, "pp_async_batch_depth")
    if evidence.active is not True or depth != 0 or version is None or version < (0, 5, 7):
        return None
    last = evidence.stage(max(busy))
    if last is None or busy[last.pp] < max(busy.values()) or not last.phases:
        return None
    work = sum(last.phases.get(name, 0.0) for name in _WORK)
    starved = sum(last.phases.get(name, 0.0) for name in _STARVED)
    idle = 1 - busy[last.pp]
    if idle < SYNC or work < SYNC or starved > SYNC or work < idle / 2:
        return None
    gain = predicted(evidence, Change(depth=1))
    remedy = (
        "--pp-async-batch-depth 1 lets the last stage prepare the next micro-batch while its GPU computes. Cost: one more slot"
        " of requests in flight. Risk: above 1, wrong output was reported (SGLang issue #15527, fixed in PR #15545); compare"
        " outputs before you rely on it."
    )
    return Finding(
        id="pipeline.last_stage_sync",
        severity="medium",
        stage=last.pp,
        summary=f"the last stage's GPU waits {say.share(idle)} of the time for its own scheduler (async depth 0)",
        evidence=(
            f"stage {last.pp} busy {say.share(busy[last.pp])}, the busiest of all ({say.busy_source(evidence)})",
            f"its scheduler works {say.share(work)} of the time and waits {say.share(starved)} for other stages (sampled)",
            "pp_async_batch_depth is 0",
        ),
        remedy=f"{remedy} {gain}" if gain else remedy,
        provenance="sampled",
    )
