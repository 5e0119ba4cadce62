"""How full a pipeline was: each stage busy, waiting in communication, or idle, over the window all ranks recorded."""

from __future__ import annotations

import msgspec

from ppscope.trace.align import Run
from ppscope.trace.analyse import RankAnalysis
from ppscope.trace.intervals import concurrency_ns, merged


class StageLoad(msgspec.Struct, gc=False):
    """Shares of the common window, 0–1, that add up to 1; means over the stage's ranks.

    Busy is any kernel or memory operation that is not communication; communication counts as waiting where nothing else runs beside it.
    """

    stage: int
    busy_fraction: float
    communication_fraction: float
    idle_fraction: float


class Bubble(msgspec.Struct, gc=False):
    """One pipeline's bubble over `window_us` from `window_start_ns` on the wall clock.

    `fraction` is the share of all stages' time in which they were not busy, 0–1; `concurrency[n]` the share of the window in which
    exactly n stages were busy. `critical_stage` is the busiest.
    """

    run: str
    fraction: float
    critical_stage: int
    window_start_ns: int
    window_us: float
    concurrency: list[float]
    per_stage: list[StageLoad]


def measure(run: Run) -> Bubble | None:
    """Measures a run; None without two stages, a common window and GPU work in it, or where some of that work was lost."""
    if len(run.stages) < 2 or run.window_ns is None or any(rank.gpu_lost for rank in run.ranks):
        return None
    window_ns = run.window_ns
    length_ns = window_ns[1] - window_ns[0]
    loads: list[StageLoad] = []
    first: list[RankAnalysis] = []
    for stage in sorted(run.stages):
        ranks = [run.ranks[index] for index in run.stages[stage]]
        if not any(rank.busy.start_ns or rank.communication.start_ns for rank in ranks):
            return None
        busy = sum(rank.busy.total_ns(window_ns) for rank in ranks) / len(ranks) / length_ns
        active = (
            sum(merged(rank.busy, rank.communication).total_ns(window_ns) for rank in ranks) / len(ranks) / length_ns
        )
        loads.append(StageLoad(stage, busy, active - busy, 1 - active))
        first.append(ranks[0])
    if not any(load.busy_fraction for load in loads):
        return None
    held = concurrency_ns([rank.busy for rank in first], window_ns)
    return Bubble(
        run=run.name,
        fraction=1 - sum(load.busy_fraction for load in loads) / len(loads),
        critical_stage=max(loads, key=lambda load: load.busy_fraction).stage,
        window_start_ns=window_ns[0],
        window_us=length_ns / 1000,
        concurrency=[part / length_ns for part in held],
        per_stage=loads,
    )
