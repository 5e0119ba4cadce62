"""Idle time of stages that should be busy, where it is known how busy they are."""

from __future__ import annotations

from ppscope.diagnose import say
from ppscope.diagnose.crowding import crowding
from ppscope.diagnose.evidence import Evidence
from ppscope.diagnose.links import links
from ppscope.diagnose.occupancy import in_words, likely
from ppscope.diagnose.pipeline import IMBALANCE, imbalance_ratio, running_slots
from ppscope.diagnose.predict import predict, predicted
from ppscope.diagnose.whatif import Change
from ppscope.views import Finding

BUBBLE = 0.4
FULL = 0.8
SYNC = 0.1
LEVEL = 0.05
"""Busy shares within this of each other are the same: which of them is the highest is chance."""
PREFILL = 0.2
_WORK = ("schedule", "postprocess", "intake", "prepare", "graph_input", "sample", "replay", "eager", "send")
_STARVED = ("recv_activations", "recv_outputs", "wait_requests", "wait_send")


def _full(evidence: Evidence) -> bool:
    """Whether requests fill the slots: then bubbles are not the load's fault."""
    slots, between = evidence.occupancy.slots, likely(evidence.occupancy)
    if slots is None or between is None:
        return False
    counted = running_slots(evidence)
    settled = counted is not None and counted >= FULL * slots
    # What the dumps leave open, the server's counts may settle; alone they must exclude that half of the slots are empty.
    return between[1] >= FULL * slots and (settled or between[0] > slots / 2)


def _means(evidence: Evidence) -> dict[str, float]:
    """Host phases as the mean over the stages."""
    means: dict[str, float] = {}
    for stage in evidence.stages:
        for name, part in stage.phases.items():
            means[name] = means.get(name, 0.0) + part / len(evidence.stages)
    return means


def bubbles(evidence: Evidence) -> Finding | None:
    """The slots are full and the stages even, yet they are idle for much of the time."""
    busy, ratio = say.busy_by_stage(evidence), imbalance_ratio(evidence)
    if busy is None or ratio is None or ratio >= IMBALANCE or not _full(evidence) or evidence.active is not True:
        return None
    mean_busy = sum(busy.values()) / len(busy)
    if 1 - mean_busy < BUBBLE or evidence.server.device == "cpu":
        return None
    means = _means(evidence)
    work = sum(means.get(name, 0.0) for name in _WORK)
    # A scheduler that waits for its GPU longer than that computes waits for a message behind which the event lies.
    behind = max(means.get("wait_gpu", 0.0) - mean_busy, 0.0)
    messages = sum(means.get(name, 0.0) for name in _STARVED) + behind
    top = sorted(means.items(), key=lambda pair: -pair[1])[:3]
    lines = [
        "busy share by stage: " + ", ".join(f"{pp}: {say.share(part)}" for pp, part in busy.items())
        + f" ({say.busy_source(evidence)})",
        f"occupied slots {in_words(evidence.occupancy)} ({evidence.occupancy.provenance})",
        "host: " + ", ".join(f"{evidence.labels.get(name, name)} {say.share(part)}" for name, part in top) + " (sampled, mean of stages)",
    ]  # fmt: skip
    counted = running_slots(evidence)
    if counted is not None and evidence.micro_batch:
        lines.append(
            f"open requests ÷ {evidence.micro_batch:.0f} in a micro-batch: {counted:.0f} slots (the server's counts)"
        )
    if behind >= SYNC:
        lines.append(
            f"of the wait for the GPU it computes {say.share(mean_busy)} at most: the rest waits for messages (inferred)"
        )
    if evidence.load.decode_share is not None and 1 - evidence.load.decode_share >= PREFILL:
        lines.append(f"{say.share(1 - evidence.load.decode_share)} of passes are prefill, which decodes wait behind")
    return Finding(
        id="pipeline.bubbles",
        severity="medium",
        stage=None,
        summary=f"stages are idle {say.share(1 - mean_busy)} of the time although requests fill the slots",
        evidence=(*lines, *links(evidence), *crowding(evidence)),
        remedy=_remedy(evidence, messages > work),
        provenance="sampled",
    )


def _remedy(evidence: Evidence, messages: bool) -> str:
    pid = evidence.server.launcher_pid
    if messages:
        return (
            "The messages between the stages set the pace: nvidia-smi topo -m shows how their GPUs reach each other; put"
            " neighbouring stages where NVLink or P2P is, and see that NCCL_P2P_DISABLE is not set. A profile burst"
            f" (ppscope attach {pid}, then p) times the transfers."
        )
    return (
        f"The schedulers set the pace: ppscope attach {pid}, panel 3, shows what they work at, and a profile burst (p there)"
        " the gaps between the kernels."
    )


def last_stage_sync(evidence: Evidence) -> Finding | None:
    """At async depth 0 the last stage cannot prepare the next micro-batch while its GPU computes, and here it sets the pace."""
    busy = say.busy_by_stage(evidence)
    if busy is None or len(busy) < 2 or evidence.server.device == "cpu" or not _full(evidence):
        return None
    if len(busy) != evidence.server.pp_size:
        return None  # the last stage is on another node
    version, depth = say.version(evidence), say.number(evidence, "pp_async_batch_depth")
    if evidence.active is not True or depth != 0 or version is None or version < (0, 5, 7):
        return None
    last = evidence.stage(max(busy))
    if last is None or busy[last.pp] < max(busy.values()) - LEVEL or not last.phases:
        return None
    work = sum(last.phases.get(name, 0.0) for name in _WORK)
    starved = sum(last.phases.get(name, 0.0) for name in _STARVED)
    idle = 1 - busy[last.pp]
    if idle < SYNC or work < SYNC or starved > SYNC or work < idle / 2:
        return None
    if bubbles(evidence) is not None:
        return None  # the others stand still as much, though nothing of theirs waits for that
    others = say.span((100 * part for pp, part in busy.items() if pp != last.pp), "%")
    change = Change(depth=1)
    expected = predict(evidence, change)
    # A prediction of less says that the simulation does not know this wait, and nothing of the remedy.
    gain = predicted(evidence, change) if expected is not None and expected.then > expected.now else ""
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
            f"stage {last.pp} busy {say.share(busy[last.pp])}, the others {others} ({say.busy_source(evidence)})",
            f"its scheduler works {say.share(work)} of the time and waits {say.share(starved)} for other stages (sampled)",
            "pp_async_batch_depth is 0",
        ),
        remedy=f"{remedy} {gain}" if gain else remedy,
        provenance="sampled",
    )
