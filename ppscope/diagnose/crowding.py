"""Others that use the schedulers' cores."""

from __future__ import annotations

from ppscope.diagnose import say
from ppscope.diagnose.evidence import Evidence

CROWDED = 0.1


def crowding(evidence: Evidence) -> list[str]:
    """Ranks whose main thread was ready to run and had no core: somebody else uses their cores."""
    found = [
        (rank.wait_share, rank)
        for stage in evidence.stages
        for rank in stage.ranks
        if rank.wait_share is not None and rank.wait_share >= CROWDED
    ]
    found.sort(key=lambda pair: -pair[0])
    return [
        f"PP{rank.key.pp} TP{rank.key.tp} (pid {rank.pid}) was ready to run without a core {say.share(share)} of the time: others use"
        " its cores"
        for share, rank in found[:3]
    ]
