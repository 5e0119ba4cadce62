"""Brings the ranks of one run onto one clock: groups of files, common window, steps joined across stages.

Ranks of one host share CLOCK_REALTIME, so `baseTimeNanoseconds + ts` aligns them (the base is the start of a quarter of a
year, and differs when a run crosses its edge). Between hosts clocks differ: there a stage's work on a step, after a wait, begins when
the stage before it is done.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from pathlib import Path

import msgspec

from ppscope.trace.analyse import RankAnalysis
from ppscope.trace.identity import run_name
from ppscope.trace.verdicts import StepResult
from ppscope.trace.windows import Window, work_windows

SKEW_NS = 200_000
"""Less than this between hosts is taken for the time of a transfer."""
_WAITED_NS = 20_000
_SHIFTS = (0, 1, -1, 2, -2, 3, -3, 4, -4)


class Run(msgspec.Struct):
    """The ranks of one profile. `window_ns` is what all of them recorded, on the wall clock; None when there is no such time.
    `work_ns` are the parts of it in which requests ran.

    `stages` maps a pipeline stage to its ranks' indices; empty when no file says its stage.
    """

    name: str
    ranks: list[RankAnalysis]
    stages: dict[int, list[int]]
    window_ns: tuple[int, int] | None
    work_ns: tuple[Window, ...] = ()


def group_runs(analyses: list[RankAnalysis]) -> list[Run]:
    """Groups files by run, ranks in order, and corrects clocks between hosts."""
    groups: dict[str, list[RankAnalysis]] = {}
    for analysis in analyses:
        groups.setdefault(analysis.identity.run, []).append(analysis)
    runs: list[Run] = []
    for held in groups.values():
        for ranks in _overlapping(held):
            ranks.sort(key=_order)
            runs.append(_make_run(ranks))
    for name, count in Counter(run.name for run in runs).items():
        for run in runs:
            if run.name == name and count > 1:
                run.name = f"{Path(run.ranks[0].path).parent.name}/{name}"
    return runs


def _order(analysis: RankAnalysis) -> tuple[int, int, int, int, str]:
    identity = analysis.identity
    places = (identity.dp, identity.stage, identity.tp, identity.rank)
    return (*(-1 if place is None else place for place in places), analysis.path)  # type: ignore[return-value]


def _overlapping(held: list[RankAnalysis]) -> list[list[RankAnalysis]]:
    """Splits files of one name that hold the same rank twice: they are runs after one another, apart in time."""
    places = [_order(analysis)[:4] for analysis in held]
    if len(set(places)) == len(places):
        return [held]
    split: list[list[RankAnalysis]] = []
    latest_ns = 0
    for analysis in sorted(held, key=lambda one: one.window_ns or (0, 0)):
        window_ns = analysis.window_ns or (0, 0)
        if not split or window_ns[0] > latest_ns or _order(analysis)[:4] in {_order(one)[:4] for one in split[-1]}:
            split.append([])
        split[-1].append(analysis)
        latest_ns = max(latest_ns, window_ns[1])
    return split


def _make_run(ranks: list[RankAnalysis]) -> Run:
    stages: dict[int, list[int]] = {}
    for index, analysis in enumerate(ranks):
        # Data-parallel replicas are pipelines of their own; the first one stands for them.
        if analysis.identity.stage is not None and analysis.identity.dp in (None, ranks[0].identity.dp):
            stages.setdefault(analysis.identity.stage, []).append(index)
    _correct_clocks(ranks, stages)
    window_ns = _common_window(ranks)
    firsts = [ranks[indices[0]] for indices in stages.values()] or ranks
    return Run(_name(ranks), ranks, stages, window_ns, work_windows(firsts, window_ns) if window_ns else ())


def _name(ranks: list[RankAnalysis]) -> str:
    """The run's name for people: what its files have in common, where that is a name."""
    first = Path(ranks[0].path).name
    if len(ranks) == 1:
        return first
    name = run_name(ranks[0].identity)
    return f"{first} and {len(ranks) - 1} more" if "#" in name else name


def _common_window(ranks: list[RankAnalysis]) -> tuple[int, int] | None:
    windows = [analysis.window_ns for analysis in ranks if analysis.window_ns is not None]
    if not windows:
        return None
    start_ns, end_ns = max(start for start, _ in windows), min(end for _, end in windows)
    return (start_ns, end_ns) if start_ns < end_ns else None


def join_steps(before: RankAnalysis, after: RankAnalysis) -> list[tuple[StepResult, StepResult]]:
    """Pairs the k-th step of one stage with the k-th of the next: every stage runs the same batches in the same order.

    There is no micro-batch number in a trace. Where modes and batch sizes disagree the files begin at different batches, and the
    smallest shift that makes them agree is taken; an empty list means that none does.
    """
    for shift in _SHIFTS:
        left, right = before.steps[max(shift, 0) :], after.steps[max(-shift, 0) :]
        pairs = list(zip(left, right, strict=False))
        if pairs and all(_key(one) == _key(other) for one, other in pairs):
            return pairs
    return []


def _key(result: StepResult) -> tuple[str | None, int | None]:
    return result.step.mode, result.step.batch_size


def _correct_clocks(ranks: list[RankAnalysis], stages: dict[int, list[int]]) -> None:
    if len({analysis.identity.host for analysis in ranks}) < 2:
        return
    offsets: dict[str | None, int] = {}
    for stage in sorted(stages):
        here = ranks[stages[stage][0]]
        host = here.identity.host
        if not offsets:
            offsets[host] = 0
        if host in offsets or stage - 1 not in stages:
            continue
        before = ranks[stages[stage - 1][0]]
        lag_ns = _lag_ns(before, here)
        if lag_ns is not None and abs(lag_ns) > SKEW_NS:
            offsets[host] = offsets.get(before.identity.host, 0) + lag_ns
        elif lag_ns is not None:
            offsets[host] = offsets.get(before.identity.host, 0)
    for analysis in ranks:
        _shift(analysis, offsets.get(analysis.identity.host, 0))


def _lag_ns(before: RankAnalysis, after: RankAnalysis) -> int | None:
    """How far the next stage's clock is behind: its work began when its wait ended, which was when the stage before was done.

    None without steps on both GPUs in which it waited.
    """
    lags: list[int] = []
    waits = after.communication
    for left, right in join_steps(before, after):
        if left.gpu_end_ns is None or right.gpu_start_ns is None:
            continue
        start_ns = right.gpu_start_ns + after.base_ns
        last = bisect_right(waits.end_ns, start_ns + SKEW_NS) - 1
        if (
            last >= 0
            and waits.end_ns[last] >= start_ns - SKEW_NS
            and waits.end_ns[last] - waits.start_ns[last] >= _WAITED_NS
        ):
            lags.append(left.gpu_end_ns + before.base_ns - start_ns)
    return max(lags) if lags else None


def _shift(analysis: RankAnalysis, offset_ns: int) -> None:
    if not offset_ns:
        return
    analysis.clock_offset_ns = offset_ns
    analysis.busy = analysis.busy.shifted(offset_ns)
    analysis.communication = analysis.communication.shifted(offset_ns)
    analysis.collective = analysis.collective.shifted(offset_ns)
    if analysis.window_ns is not None:
        analysis.window_ns = (analysis.window_ns[0] + offset_ns, analysis.window_ns[1] + offset_ns)
    spans = analysis.spans
    for column in (spans.host_start_ns, spans.host_end_ns, spans.gpu_start_ns, spans.gpu_end_ns):
        column[:] = [at + offset_ns for at in column]
