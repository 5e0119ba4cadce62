"""What traces prove about the stages of a run: that they stand still, and that one has more to do than the others."""

from __future__ import annotations

from statistics import mean

from ppscope.figures import share
from ppscope.trace.align import Run, join_steps
from ppscope.trace.analyse import RankAnalysis
from ppscope.trace.bubble import Bubble, StageLoad
from ppscope.trace.intervals import Intervals
from ppscope.trace.verdicts import StepResult
from ppscope.views import Finding

BUBBLE_FRACTION = 0.3
IMBALANCE = 1.3
LEAST_BUSY = 0.1
"""Below this share on the busiest stage there is too little work to compare."""
ALONE_SHARE = 0.7
OVERLAP_SHARE = 0.2
"""With more of the last stage's steps than this beside an open step of the first, the stages do not take turns."""
_LINES = 5
_FEW_STEPS = 3
_FEW_INTERVALS = 100


def bubbles(run: Run, bubble: Bubble) -> Finding | None:
    """The stages stand still for much of the time in which requests run."""
    if bubble.fraction < BUBBLE_FRACTION or not _saw_enough(run):
        return None
    stages = len(bubble.per_stage)
    worked = sum(bubble.concurrency[1:])
    alone = bubble.concurrency[1] / worked if worked else 0.0
    sizes = [
        step.step.batch_size
        for rank in run.ranks
        for step in rank.steps
        if step.step.is_decode and step.step.batch_size
    ]
    largest = max(sizes, default=None)
    evidence = [
        f"over {bubble.window_us / 1000:.1f} ms that all {stages} stages recorded, they were at work {share(1 - bubble.fraction)}"
        " of the time",
        f"while anything ran, one stage ran alone {share(alone)} of the time",
        *(_load(load) for load in bubble.per_stage[:_LINES]),
    ]
    overlap = _overlap(run)
    if overlap is not None and overlap > OVERLAP_SHARE:
        evidence.append(f"{share(overlap)} of the last stage's steps ran beside an open step of the first")
    turns = alone >= ALONE_SHARE and (overlap is None or overlap <= OVERLAP_SHARE)
    if largest is not None and turns:
        evidence.append(f"decode steps hold up to {largest} request{'' if largest == 1 else 's'}")
    return Finding(
        id="pipeline.bubbles",
        # One request a step cannot be split further: no flag fills the pipeline.
        severity="info" if largest == 1 else "medium",
        stage=None,
        summary=f"the pipeline's stages stand still {share(bubble.fraction)} of the time",
        evidence=tuple(evidence),
        remedy=_remedy(stages, largest if turns else None),
        provenance="exact",
    )


def _remedy(stages: int, largest: int | None) -> str:
    """What to change; `largest` is the size of the decode steps where the stages seem to take turns.

    A trace names no micro-batch: stages whose hosts are slow look as if they took turns though every slot holds requests.
    """
    host = "Where requests fill every slot, the time goes between the steps: ppscope attach, panel 3, shows what the schedulers work at."
    if largest is None:
        return f"Keep more micro-batches in flight: look at how many requests run. {host}"
    if largest == 1:
        return (
            f"Send more requests at a time: with one request in a step, {stages} stages need {stages} of them. {host}"
        )
    each = -(-largest // stages)
    return (
        "Where the requests sit in few of the slots (ppscope attach counts them), spread them: --pp-max-micro-batch-size"
        f" {each} (caps running requests at {each} × the number of slots); it can be tried live through /set_internal_state. {host}"
    )


def _load(load: StageLoad) -> str:
    parts = [f"busy {share(load.busy_fraction)}"]
    if load.collective_fraction >= 0.005:
        parts.append(f"in collectives of its own {share(load.collective_fraction)}")
    parts += [f"waiting in communication {share(load.communication_fraction)}", f"idle {share(load.idle_fraction)}"]
    return f"stage {load.stage}: {', '.join(parts)}"


def _first(run: Run, stage: int) -> RankAnalysis:
    return run.ranks[run.stages[stage][0]]


def _overlap(run: Run) -> float | None:
    """The share of the last stage's steps on the GPU beside which the first has a step open, on its host or its GPU; None without steps."""
    first, last = _first(run, min(run.stages)), _first(run, max(run.stages))
    shift_ns = first.base_ns + first.clock_offset_ns
    spans = [(one.step.start_ns + shift_ns, one.step.end_ns + shift_ns) for one in first.steps]
    spans += [(at + shift_ns, to + shift_ns) for at, to in _extents(first)]
    held = Intervals.union(sorted(spans))
    shift_ns = last.base_ns + last.clock_offset_ns
    beside = [held.total_ns((at + shift_ns, to + shift_ns)) > 0 for at, to in _extents(last) if to > at]
    return mean(beside) if beside and spans else None


def _extents(rank: RankAnalysis) -> list[tuple[int, int]]:
    """Where each step's work lies on the GPU, on the file's own clock."""
    return [
        (one.gpu_start_ns, one.gpu_end_ns)
        for one in rank.steps
        if one.gpu_start_ns is not None and one.gpu_end_ns is not None
    ]


def _saw_enough(run: Run) -> bool:
    """True when the common window holds several steps of every stage: one passing batch leaves every pipeline mostly empty."""
    start_ns, end_ns = run.window_ns or (0, 0)
    for stage in run.stages:
        rank = _first(run, stage)
        shift_ns = rank.base_ns + rank.clock_offset_ns
        inside = [at for at, to in _extents(rank) if at + shift_ns < end_ns and to + shift_ns > start_ns]
        # SGLang up to 0.5.6 has no step spans.
        if len(inside) < _FEW_STEPS and (rank.steps or len(rank.busy.start_ns) < _FEW_INTERVALS):
            return False
    return True


def imbalance(run: Run, bubble: Bubble) -> Finding | None:
    """One stage computes longer than the others on the same steps; nothing is claimed where steps do not say what they are."""
    joined = _joined(run)
    work = _work_ns(run, joined)
    average = mean(work.values()) if work else 0
    worst = max(work, key=lambda stage: work[stage], default=None)
    if worst is None or not average or work[worst] < IMBALANCE * average:
        return None
    if max(load.busy_fraction for load in bubble.per_stage) < LEAST_BUSY:
        return None
    return Finding(
        id="pipeline.imbalance",
        severity="medium",
        stage=worst,
        summary=f"stage {worst} works {work[worst] / average:.1f} times as long as the mean stage",
        evidence=(
            f"GPU time of {len(joined)} steps that all stages recorded: "
            + ", ".join(f"stage {stage} {spent / 1e6:.1f} ms" for stage, spent in work.items()),
            f"busy time over {bubble.window_us / 1000:.1f} ms: "
            + ", ".join(f"stage {load.stage} {share(load.busy_fraction)}" for load in bubble.per_stage),
        ),
        remedy="Move layers away from it: SGLANG_PP_LAYER_PARTITION sets the number of layers of each stage (needs a restart).",
        provenance="exact",
    )


def _work_ns(run: Run, joined: list[list[StepResult]]) -> dict[int, int]:
    """GPU time of each stage, communication left out, in the steps that all of them recorded; empty where few or none can be joined."""
    if len(joined) < _FEW_STEPS:
        return {}
    stages = sorted(run.stages)
    return {
        stage: sum(steps[place].replayed_compute_ns + steps[place].compute_eager_ns for steps in joined)
        for place, stage in enumerate(stages)
    }


def _joined(run: Run) -> list[list[StepResult]]:
    """The same step on every stage, by stage."""
    first, *others = (_first(run, stage) for stage in sorted(run.stages))
    rows = {id(step): [step] for step in first.steps if step.step.mode is not None}
    for rank in others:
        pairs = {id(left): right for left, right in join_steps(first, rank)}
        rows = {key: [*held, pairs[key]] for key, held in rows.items() if key in pairs}
    return list(rows.values())
