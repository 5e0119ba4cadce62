"""When to ask for dumps: a burst once the server serves, and another whenever the evidence for slots is thin."""

from __future__ import annotations

from ppscope.diagnose.occupancy import ENOUGH, GOOD
from ppscope.records import DumpNow, RankKey, Server

FIRST_BURST = 64
"""Dumps of the first burst over all stages: about half of them are informative."""
LATER_BURST = 40
LATER_NS = 20_000_000_000


class Dumping:
    """Decides on bursts. One process of each stage is dumped: its tensor-parallel peers run the same loop."""

    def __init__(self, cores: float | None = None) -> None:
        self._cores = cores
        self._launcher: int | None = None
        self._asked_ns = 0
        self._bursts = 0

    def wanted(self, server: Server, samples: int, active: bool | None, now_ns: int) -> list[DumpNow]:
        """The dumps to ask for now; `samples` are the informative ones of late, `active` whether forward passes are seen."""
        if server.launcher_pid != self._launcher:
            self._launcher, self._asked_ns, self._bursts = server.launcher_pid, 0, 0
        if server.state != "serving" or server.pp_size < 2 or active is False or samples >= GOOD:
            return []
        if self._bursts == 0:
            size = FIRST_BURST
        elif now_ns - self._asked_ns < LATER_NS or (samples >= ENOUGH and self._bursts > 1):
            return []
        else:
            size = LATER_BURST
        self._asked_ns = now_ns
        self._bursts += 1
        return burst(server, size, self._cores)


def burst(server: Server, size: int, cores: float | None = None) -> list[DumpNow]:
    """About `size` dumps, round the stages in turn."""
    stages = first_ranks(server)
    rounds = -(-size // len(stages)) if stages else 0
    return [DumpNow(1, key, cores) for _ in range(rounds) for key in stages]


def first_ranks(server: Server) -> list[RankKey]:
    """The first tensor-parallel rank of each stage of each replica."""
    first: dict[tuple[int, int], RankKey] = {}
    for rank in sorted(server.ranks, key=lambda rank: rank.key):
        first.setdefault((rank.key.dp, rank.key.pp), rank.key)
    return list(first.values())
