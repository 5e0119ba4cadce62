"""How full a pipeline was: each stage busy, waiting in communication, or idle, over the window all ranks recorded."""

from __future__ import annotations

from statistics import mean

import msgspec

from ppscope.trace.align import Run
from ppscope.trace.intervals import Intervals, concurrency_ns, merged


class StageLoad(msgspec.Struct, gc=False):
    """Shares of the time in which requests ran, 0–1, that add up to 1; means over the stage's ranks.

    Busy is any kernel or memory operation that is not communication; where nothing of it runs, a collective among the stage's own ranks,
    and where that does not run either, communication with other stages, which is waiting.
    """

    stage: int
    busy_fraction: float
    collective_fraction: float
    communication_fraction: float
    idle_fraction: float

    @property
    def working_fraction(self) -> float:
        """The share in which the stage was at work on a step: more micro-batches shorten no collective."""
        return self.busy_fraction + self.collective_fraction


class Bubble(msgspec.Struct, gc=False):
    """One pipeline's bubble over the `window_us` in which requests ran, the first of them at `window_start_ns` on the wall clock.

    `fraction` is the share of all stages' time in which they were not at work, 0–1; `concurrency[n]` the share of the window in which
    exactly n stages were. `critical_stage` is the busiest.
    """

    run: str
    fraction: float
    critical_stage: int
    window_start_ns: int
    window_us: float
    concurrency: list[float]
    per_stage: list[StageLoad]


def measure(run: Run) -> Bubble | None:
    """Measures a run; None without two stages, a common window with work in it, or where some of the GPU's work was lost."""
    if len(run.stages) < 2 or not run.work_ns or any(rank.gpu_lost for rank in run.ranks):
        return None
    length_ns = sum(end - start for start, end in run.work_ns)
    loads: list[StageLoad] = []
    working: list[Intervals] = []
    for stage in sorted(run.stages):
        ranks = [run.ranks[index] for index in run.stages[stage]]
        if not any(rank.busy.start_ns or rank.communication.start_ns for rank in ranks):
            return None
        at_work = [merged(rank.busy, rank.collective) for rank in ranks]
        active = [merged(rank.busy, rank.communication) for rank in ranks]
        busy = [rank.busy for rank in ranks]
        parts = [mean(one.share(run.work_ns) for one in held) for held in (busy, at_work, active)]
        loads.append(StageLoad(stage, parts[0], parts[1] - parts[0], parts[2] - parts[1], 1 - parts[2]))
        working.append(at_work[0])
    if not any(load.busy_fraction for load in loads):
        return None
    held = [
        sum(parts) for parts in zip(*(concurrency_ns(working, window_ns) for window_ns in run.work_ns), strict=True)
    ]
    return Bubble(
        run=run.name,
        fraction=1 - sum(load.working_fraction for load in loads) / len(loads),
        critical_stage=max(loads, key=lambda load: load.busy_fraction).stage,
        window_start_ns=run.work_ns[0][0],
        window_us=length_ns / 1000,
        concurrency=[part / length_ns for part in held],
        per_stage=loads,
    )
