"""A scheduler's thread that is the limit."""

from __future__ import annotations

from ppscope.diagnose import say
from ppscope.diagnose.crowding import crowding
from ppscope.diagnose.evidence import Evidence, RankEvidence, StageEvidence
from ppscope.views import Finding

FULL_CORE = 0.9
MOSTLY_RUNS = 0.6
"""Of a core that others use too: the thread runs at least so much, and is ready to run for the rest."""
GPU_WAITS = 0.8
UTIL_WAITS = 60.0
WORKING = 0.6
_WORK = ("replay", "eager", "graph_input", "prepare", "sample", "schedule", "postprocess", "intake", "send")


def _gpu_waits(evidence: Evidence, stage: StageEvidence, rank: RankEvidence) -> str | None:
    """What shows that the GPU has time left; None where nothing does."""
    if stage.busy is not None and stage.busy_source in ("metric", "trace", "probe"):
        return f"its GPU is busy {say.share(stage.busy)}" if stage.busy <= GPU_WAITS else None
    util = rank.gpu.util_percent if rank.gpu is not None else None
    if util is None or util > UTIL_WAITS:
        return None
    return f"its GPU shows {util:.0f} % utilisation ({say.gpu_source(evidence)})"


def _full_core(rank: RankEvidence) -> bool:
    """Whether the main thread never rests: it runs, or is ready to and has no core."""
    runs = rank.host_cpu
    if runs is None or runs < MOSTLY_RUNS:
        return False
    return runs + (rank.wait_share or 0.0) >= FULL_CORE


def cpu_bound(evidence: Evidence) -> Finding | None:
    """A scheduler's main thread uses a whole core for its work while the GPU has time left."""
    if evidence.active is not True or evidence.server.device == "cpu":
        return None
    hit = []
    for stage in evidence.stages:
        for rank in stage.ranks:
            work = sum(rank.phases.get(name, 0.0) for name in _WORK)
            wait = _gpu_waits(evidence, stage, rank)
            if _full_core(rank) and work >= WORKING and wait is not None:
                hit.append((stage.pp, rank, work, wait))
    if not hit:
        return None
    numbers = {pp for pp, _, _, _ in hit}
    lines = [
        f"PP{rank.key.pp} TP{rank.key.tp} (pid {rank.pid}): main thread {say.share(rank.host_cpu)} of a core, at work"
        f" {say.share(work)} of the time (sampled); {wait}"
        for _, rank, work, wait in hit[:4]
    ]
    eager, pid = evidence.decode.observed == "off", hit[0][1].pid
    return Finding(
        id="host.cpu_bound",
        severity="medium",
        stage=next(iter(numbers)) if len(numbers) == 1 else None,
        summary=f"the scheduler of {say.stages(numbers)} needs a whole core and its GPU waits for it",
        evidence=(*lines, *crowding(evidence)),
        remedy="Decode runs eager, and every launch costs host time: mend the graphs finding first."
        if eager
        else f"See what it works at (py-spy top --nonblocking --pid {pid}; the stacks panel), and give it a faster or a free core:"
        f" taskset -pc {pid} shows which it may use.",
        provenance="sampled",
    )
