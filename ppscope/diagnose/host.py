"""A scheduler's thread that is the limit."""

from __future__ import annotations

from ppscope.diagnose import say
from ppscope.diagnose.crowding import crowding
from ppscope.diagnose.evidence import Evidence, RankEvidence, StageEvidence
from ppscope.views import Finding

FULL_CORE = 0.9
GPU_WAITS = 0.8
UTIL_WAITS = 60.0
WORKING = 0.6
_WORK = ("replay", "eager", "graph_input", "prepare", "sample", "schedule", "postprocess", "intake", "send")


def _gpu_waits(stage: StageEvidence, rank: RankEvidence) -> str | None:
    """What shows that the GPU has time left; None where nothing does."""
    if stage.busy is not None and stage.busy_source in ("metric", "trace", "probe"):
        return f"its GPU is busy {say.share(stage.busy)}" if stage.busy <= GPU_WAITS else None
    util = rank.gpu.util_percent if rank.gpu is not None else None
    return f"its GPU shows {util:.0f} % utilisation (NVML)" if util is not None and util <= UTIL_WAITS else None


def cpu_bound(evidence: Evidence) -> Finding | None:
    """A scheduler's main thread uses a whole core for its work while the GPU has time left."""
    if evidence.active is not True or evidence.server.device == "cpu":
        return None
    hit = []
    for stage in evidence.stages:
        for rank in stage.ranks:
            work = sum(rank.phases.get(name, 0.0) for name in _WORK)
            wait = _gpu_waits(stage, rank)
            if rank.host_cpu is not None and rank.host_cpu >= FULL_CORE and work >= WORKING and wait is not None:
                hit.append((stage.pp, rank, work, wait))
    if not hit:
        return None
    numbers = {pp for pp, _, _, _ in hit}
    lines = [
        f"PP{rank.key.pp} TP{rank.key.tp} (pid {rank.pid}): main thread {say.share(rank.host_cpu or 0.0)} of a core, at work"
        f" {say.share(work)} of the time (sampled); {wait}"
        for _, rank, work, wait in hit[:4]
    ]
    eager = evidence.decode.observed == "off"
    return Finding(
        id="host.cpu_bound",
        severity="medium",
        stage=next(iter(numbers)) if len(numbers) == 1 else None,
        summary=f"the scheduler of {say.stages(numbers)} uses a whole core and its GPU waits for it",
        evidence=(*lines, *crowding(evidence)),
        remedy="Decode runs eager, and every launch costs host time: mend the graphs finding first."
        if eager
        else "Give the scheduler a faster or a free core (numactl, taskset), and see in its stacks what it works at.",
        provenance="sampled",
    )
