"""How often each rank is sampled, so that all py-spy together stay within one CPU budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ppscope.records import RankKey

WINDOW_S = 1.8
LONG_WINDOW_S = 4.0
OVERLAP_S = 0.2
MIN_HZ = 10
REST_HZ = 20
_OTHERS_EVERY = 4
BUDGET_CORES = 0.34
"""Of the 0.38 core for all py-spy; the rest is for dumps."""

# CPU seconds: one start (symbols are read anew every time), one sample, and one sample's share of a thread.
# Measured with 0.4.3 on 4 to 154 threads; `factor` corrects them for this machine and target.
START_S = 0.016
SAMPLE_S = 0.00037
THREAD_S = 0.0000055


@dataclass(frozen=True)
class RankLoad:
    """What sampling a rank costs: its threads, and measured over modelled CPU so far (1 when not yet measured)."""

    key: RankKey
    threads: int
    factor: float = 1.0

    def sample_s(self) -> float:
        """CPU seconds of one sample."""
        return self.factor * (SAMPLE_S + THREAD_S * self.threads)

    def cores(self, rate_hz: float, window_s: float) -> float:
        """Cores that windows of this length, each overlapping the next, take at this rate."""
        return self.start_cores(window_s) + rate_hz * self.sample_s() * _stretch(window_s)

    def start_cores(self, window_s: float) -> float:
        """Cores that starting anew for every window takes."""
        return self.factor * START_S / window_s


@dataclass(frozen=True)
class Slot:
    """How a rank is sampled now."""

    rate_hz: int
    window_s: float


def window_lengths_s(share: float) -> tuple[float, ...]:
    """Lengths that windows may have where this share of the budget may be used: starting them is the dearest part."""
    return (WINDOW_S, LONG_WINDOW_S) if share >= 1.0 else (LONG_WINDOW_S,)


def plan(
    ranks: Sequence[RankLoad],
    requested_hz: float,
    budget_cores: float = BUDGET_CORES,
    turn: int = 0,
    lengths_s: Sequence[float] = (WINDOW_S, LONG_WINDOW_S),
) -> dict[RankKey, Slot]:
    """Slots of the ranks to sample now; a rank that is missing waits for a later `turn`.

    The first tensor-parallel rank of each stage comes first and gets three quarters of the budget when there are others. Rates
    fall to 10 Hz before ranks take turns; the others never get more than 20 Hz. Where the first ones leave less than one other
    needs, every fourth turn is the others'.
    """
    first: dict[tuple[int, int], RankLoad] = {}
    for rank in sorted(ranks, key=lambda load: load.key):
        first.setdefault((rank.key.dp, rank.key.pp), rank)
    leads = list(first.values())
    chosen = {lead.key for lead in leads}
    rest = [rank for rank in ranks if rank.key not in chosen]
    top = max(1, int(requested_hz))
    slots = _share(leads, top, budget_cores * (0.75 if rest else 1.0), turn, lengths_s, at_least=1)
    used = sum(rank.cores(slots[rank.key].rate_hz, slots[rank.key].window_s) for rank in leads if rank.key in slots)
    ceiling = min([top, REST_HZ, *(slot.rate_hz for slot in slots.values())])
    dearest = max((rank.cores(min(MIN_HZ, top), LONG_WINDOW_S) for rank in rest), default=0.0)
    if rest and (len(slots) < len(leads) or budget_cores - used < dearest):
        passed = (turn + 1) // _OTHERS_EVERY
        if turn % _OTHERS_EVERY == _OTHERS_EVERY - 1:
            return _share(rest, min(top, REST_HZ), budget_cores, passed - 1, lengths_s, at_least=1)
        return _share(leads, top, budget_cores, turn - passed, lengths_s, at_least=1)
    return slots | _share(rest, ceiling, budget_cores - used, turn, lengths_s, at_least=0)


def _stretch(window_s: float) -> float:
    # While two windows overlap, both sample.
    return (window_s + OVERLAP_S) / window_s


def _share(
    ranks: Sequence[RankLoad], top_hz: int, cores: float, turn: int, lengths_s: Sequence[float], at_least: int
) -> dict[RankKey, Slot]:
    if not ranks:
        return {}
    per_hz = sum(rank.sample_s() for rank in ranks)
    lowest = min(MIN_HZ, top_hz)
    for window_s in lengths_s:
        starts = sum(rank.start_cores(window_s) for rank in ranks)
        rate = min(top_hz, int((cores - starts) / (per_hz * _stretch(window_s))))
        if rate >= lowest:
            return {rank.key: Slot(rate, window_s) for rank in ranks}
    slots: dict[RankKey, Slot] = {}
    left = cores
    # So many fit for certain; the next turn goes on behind them.
    step = max(1, int(cores / max(rank.cores(lowest, LONG_WINDOW_S) for rank in ranks)))
    for offset in range(len(ranks)):
        rank = ranks[(turn * step + offset) % len(ranks)]
        cost = rank.cores(lowest, LONG_WINDOW_S)
        if cost > left and len(slots) >= at_least:
            break
        slots[rank.key] = Slot(lowest, LONG_WINDOW_S)
        left -= cost
    return slots
