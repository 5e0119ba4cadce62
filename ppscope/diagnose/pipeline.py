"""Is the pipeline a pipeline: occupied slots, too few requests, uneven stages."""

from __future__ import annotations

import json
import math

from ppscope.diagnose import say
from ppscope.diagnose.evidence import Evidence
from ppscope.diagnose.layers import VARIABLE, balanced_split
from ppscope.diagnose.occupancy import in_words, likely
from ppscope.diagnose.predict import predicted
from ppscope.diagnose.running import enough, needed_slots, places, wanting
from ppscope.diagnose.whatif import Change
from ppscope.views import Finding, Occupancy

_COUNTED = 1.05
IMBALANCE = 1.3
LEAST_BUSY = 0.1
"""Below this share on the busiest stage there is too little work to compare."""

_ONE = 1.5
"""Sampled slots below which it is one. Above, two of which one has most of the requests look the same as one batch that moves from slot
to slot when its requests end together."""

_COUNT_MARGIN = 0.5
"""Slots by which the server's counts and the dumps must differ before one contradicts the other: requests come and go between readings."""

_NEARLY_ONE = 1.25
"""Slots by the server's counts up to which one micro-batch holds nearly all requests: 7 of 8, one of them elsewhere."""


def is_serial(evidence: Evidence) -> bool:
    """Whether the requests would fill the slots and sit in half of them or fewer, at the most that the evidence allows."""
    slots, mean = evidence.occupancy.slots, evidence.occupancy.mean
    if slots is None or slots < 2 or mean is None or evidence.active is False:
        return False
    between = likely(evidence.occupancy)
    # Slots are whole: what lies below 3 is 2. A round that was counted may hold a slot that was just given up.
    at_most = mean / _COUNTED if evidence.occupancy.provenance == "exact" or between is None else math.floor(between[1])
    half = max(needed_slots(slots, evidence.server) / 2, 1.0)
    if at_most > half or _enough(evidence, slots) is not True or _count_contradicts(evidence, half):
        return False
    return between is None or half >= 2 or between[1] < _ONE or _count_says_one(evidence)


def _replicas(evidence: Evidence) -> int:
    """Data-parallel replicas, each with slots of its own; counts of requests are of all of them."""
    return max(evidence.server.dp_size, 1)


def running_slots(evidence: Evidence) -> float | None:
    """Slots of a replica that the server's own counts need: open requests (each at least one sequence) ÷ the size of a micro-batch."""
    if evidence.in_flight is None or not evidence.micro_batch:
        return None
    return (evidence.in_flight - (evidence.load.queued or 0)) / evidence.micro_batch / _replicas(evidence)


def _count_contradicts(evidence: Evidence, half: float) -> bool:
    """Whether the server's own counts need more slots than that.

    On a node without a free core dumps catch the same slot too often; the counts do not mind.
    """
    counted = running_slots(evidence)
    return counted is not None and counted > half + _COUNT_MARGIN


def _count_says_one(evidence: Evidence) -> bool:
    """Whether one micro-batch holds nearly all that runs."""
    counted = running_slots(evidence)
    return counted is not None and counted <= _NEARLY_ONE


def _enough(evidence: Evidence, slots: int) -> bool | None:
    """Whether there are requests enough for every stage of every replica; None where it is not known."""
    return enough(evidence.load.running, evidence.running_at_least, places(slots, evidence.server))


def _occupied(evidence: Evidence) -> str:
    found = evidence.occupancy
    what = "launches" if found.provenance == "exact" else "samples"
    return f"occupied slots {in_words(found)}, {found.samples} {what} ({found.provenance})"


def _where(found: Occupancy, mean: float) -> str:
    """The slots that the claim is about, whole ones: `≈1`, `≈1–2`, `1` where launches were counted."""
    between = likely(found)
    if found.provenance != "sampled" or between is None:
        return f"{round(mean)}"
    low, high = round(between[0]), math.floor(between[1])
    return f"≈{low}" if low >= high else f"≈{low}–{high}"


def serial(evidence: Evidence) -> Finding | None:
    """Requests enough for every slot sit in few of them, so the stages take turns."""
    slots, mean = evidence.occupancy.slots, evidence.occupancy.mean
    if not is_serial(evidence) or slots is None or mean is None:
        return None
    running = evidence.load.running or evidence.running_at_least or slots
    queued = evidence.load.queued or 0
    all_slots = slots * _replicas(evidence)
    wanted = math.ceil(wanting(running, queued, evidence.in_flight, evidence.micro_batch) / all_slots)
    limit = say.number(evidence, "pp_max_micro_batch_size")
    lines = [_occupied(evidence)]
    if evidence.slot_samples and evidence.occupancy.provenance == "sampled":
        lines.append("samples by slot: " + ", ".join(f"{slot}: {count}" for slot, count in evidence.slot_samples[:8]))
    if evidence.micro_batch is not None:
        lines.append(
            f"{evidence.micro_batch:.0f} requests in a decode micro-batch, about {running} running and {queued} queued (inferred)"
        )
    if limit is not None:
        takes = "one slot may take them all" if limit >= running else f"one slot takes up to {limit}"
        lines.append(f"pp_max_micro_batch_size is {limit}: {takes}")
    return Finding(
        id="pipeline.serial",
        severity="high",
        stage=None,
        summary=f"{running} requests sit in {_where(evidence.occupancy, mean)} of {slots} micro-batch slots: the stages take turns",
        evidence=tuple(lines),
        remedy=_serial_remedy(evidence, slots, wanted, limit),
        provenance=evidence.occupancy.provenance or "sampled",
    )


def _serial_remedy(evidence: Evidence, slots: int, wanted: int, limit: int | None) -> str:
    each = slots * _replicas(evidence)
    cap = f"at most {wanted} × {each} = {wanted * each} requests run then, more wait in the queue"
    if limit is not None and limit <= wanted:
        return (
            f"--pp-max-micro-batch-size is {limit} already, so no flag spreads these requests: they were admitted together, and"
            " new ones will fill the other slots."
        )
    body = json.dumps({"server_args": {"pp_max_micro_batch_size": wanted}})
    gain = predicted(evidence, Change(slots_used=min(slots, max(evidence.load.running or slots, 1))))
    text = (
        f"--pp-max-micro-batch-size {wanted} ({cap}). On the running server, for requests admitted from then on:"
        f" curl -X POST {say.url(evidence, '/set_internal_state')} -H 'Content-Type: application/json' -d '{body}'"
    )
    return f"{text}. {gain}" if gain else text


def _slots_say_more(evidence: Evidence, needed: int) -> bool:
    """Whether the slots that were seen at work hold more than the open requests tell: one of these may carry several prompts."""
    between = likely(evidence.occupancy)
    if between is None:
        return False
    fewest = between[0] * _replicas(evidence)
    more_than_open = evidence.in_flight_peak is not None and fewest > evidence.in_flight_peak + _COUNT_MARGIN
    return more_than_open or fewest * max(evidence.micro_batch or 1.0, 1.0) >= needed


def too_few_requests(evidence: Evidence) -> Finding | None:
    """Fewer requests run than there are slots: the pipeline cannot be full, whatever the flags."""
    slots, running, most = evidence.occupancy.slots, evidence.load.running, evidence.running_at_most
    # Between two requests of one client the count is 0 for a moment, and one of many is missing: the most of late decides.
    if slots is None or slots < 2 or most is None or evidence.active is not True:
        return None
    needed = places(slots, evidence.server)
    if not 0 < most < needed or (evidence.running_at_least or 0) >= needed or evidence.load.queued:
        return None
    if _slots_say_more(evidence, needed):
        return None
    running, all_slots = running or most, slots * _replicas(evidence)
    lines = [
        f"{say.plural(running, 'request')} running ({evidence.load.running_provenance or 'inferred'}), {all_slots} micro-batch slots"
    ]
    if evidence.occupancy.mean is not None:
        lines.append(_occupied(evidence))
    return Finding(
        id="load.too_few_requests",
        severity="info",
        stage=None,
        summary=f"{say.plural(running, 'request')} for {all_slots} micro-batch slots: stages must wait for each other",
        evidence=tuple(lines),
        remedy="No flag helps: send more requests at once, or use tensor parallelism or fewer stages for this load.",
        provenance=evidence.load.running_provenance or "inferred",
    )


def imbalance_ratio(evidence: Evidence) -> float | None:
    """The busiest stage's busy share ÷ the mean of all; None without busy evidence for every stage."""
    busy = say.busy_by_stage(evidence)
    if busy is None or len(busy) < 2 or max(busy.values()) < LEAST_BUSY:
        return None
    return max(busy.values()) / (sum(busy.values()) / len(busy))


def imbalance(evidence: Evidence) -> Finding | None:
    """One stage is much busier than the others: it sets the pace."""
    ratio, busy = imbalance_ratio(evidence), say.busy_by_stage(evidence)
    if ratio is None or ratio < IMBALANCE or busy is None or evidence.active is False:
        return None
    stage = max(busy, key=busy.__getitem__)
    shares = ", ".join(f"{pp}: {say.share(share)}" for pp, share in busy.items())
    lines = [f"busy share by stage: {shares} ({say.busy_source(evidence)})"]
    layers = [found.layers for pp in busy if (found := evidence.stage(pp)) is not None and found.layers is not None]
    split = None
    if len(layers) == len(busy) == evidence.server.pp_size:
        lines.append(f"layers by stage: {', '.join(map(str, layers))}")
        split = balanced_split(layers, list(busy.values()))
        if split is not None and list(split) == layers:
            return None  # as even as whole layers can make it
    if split is not None:
        text = ",".join(map(str, split))
        remedy = f"{VARIABLE}={text} in the server's environment (needs a restart; the model's layers must sum up to {sum(split)})."
        gain = predicted(evidence, Change(layers=split))
        remedy = f"{remedy} {gain}" if gain else remedy
    else:
        share = sum(busy.values()) / len(busy) / busy[stage]
        remedy = (
            f"Leave stage {stage} about {say.share(share)} of its layers and give the rest to the others: {VARIABLE}=n0,n1,… in the"
            " server's environment sets the layers of each stage (needs a restart)."
        )
    whole = "the pipeline" if len(busy) == evidence.server.pp_size else "the stages of this node"
    return Finding(
        id="pipeline.imbalance",
        severity="medium",
        stage=stage,
        summary=f"stage {stage} is busy {ratio:.1f} times the mean: it sets the pace of {whole}",
        evidence=tuple(lines),
        remedy=remedy,
        provenance=say.busy_provenance(evidence),
    )
