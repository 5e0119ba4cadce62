"""The result of `ppscope trace` as plain text, at most 80 columns wide."""

from __future__ import annotations

import textwrap
from collections import Counter
from pathlib import Path
from statistics import median

from ppscope.figures import UNKNOWN, held, loose, share
from ppscope.trace.align import Run
from ppscope.trace.analyse import RankAnalysis
from ppscope.trace.bubble import Bubble
from ppscope.trace.report import TraceReport
from ppscope.trace.stage_findings import BUBBLE_FRACTION
from ppscope.trace.verdicts import LARGE_LEAK_SHARE, many_beside
from ppscope.views import Finding

WIDTH = 80
_BAR = 24
_MOST_NAMED = 6
_SIGNS = {"high": "✖", "medium": "▲", "info": "·"}


def render(report: TraceReport) -> str:
    """Renders all runs, then the findings."""
    lines: list[str] = []
    for run, bubble in zip(report.runs, report.bubbles, strict=True):
        lines += [*_run(run, bubble), ""]
    for finding in report.findings:
        lines += [*_finding(finding), ""]
    if not report.findings:
        lines.append(_nothing(report))
    return "\n".join(line for whole in lines for line in (_fit(whole) or [""])) + "\n"


def _nothing(report: TraceReport) -> str:
    ranks = [rank for run in report.runs for rank in run.ranks]
    if not any(rank.kernels.total for rank in ranks):
        return "No kernels in these files: steps and host spans only, nothing can be said about graphs and bubbles."
    if not any(step.step.is_decode and step.verdict != "unknown" for rank in ranks for step in rank.steps):
        eager, graphs = sum(rank.kernels.eager for rank in ranks), sum(rank.launches.graph for rank in ranks)
        return (
            f"No decode step can be told in these files, so nothing is known of its graphs: {eager} kernels were launched one by one,"
            f" {graphs} graphs. {_no_bubble(report)}"
        )
    return f"Nothing found: no eager launch where a replay was expected. {_no_bubble(report)}"


def _no_bubble(report: TraceReport) -> str:
    """Why no bubble was found: it is small, or it is not known."""
    bubble = report.bubble
    if bubble is None:
        return "Of the bubble nothing is known: that takes the files of all stages of a run, with GPU work recorded at the same time."
    if bubble.fraction < BUBBLE_FRACTION:
        return f"A bubble of {share(bubble.fraction, 1)} is little: from {share(BUBBLE_FRACTION)} on it is called a finding."
    return f"Too few steps of every stage were recorded at the same time to judge the bubble of {share(bubble.fraction, 1)}."


def _fit(line: str) -> list[str]:
    if len(line) <= WIDTH:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    wrapped = textwrap.wrap(held(line), WIDTH, subsequent_indent=indent, drop_whitespace=True, replace_whitespace=False)
    return [loose(part) for part in wrapped]


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)


def _run(run: Run, bubble: Bubble | None) -> list[str]:
    hosts = {rank.identity.host for rank in run.ranks if rank.identity.host}
    facts = [f"{len(run.ranks)} file{'s' if len(run.ranks) > 1 else ''}"]
    if run.stages:
        facts.append(_stages(sorted(run.stages)))
    facts += sorted(map(_printable, hosts))[:2]
    lines = [f"{_printable(run.name)}  ({', '.join(facts)})"]
    lines.append(
        f"{'rank':>10} {'kernels':>9} {'replayed':>9} {'eager':>8} {'unknown':>8} {'comm':>7} {'graphs':>7} {'mem ops':>8}"
    )
    lines += [_rank(rank) for rank in run.ranks]
    for rank in run.ranks:
        lines += _steps(rank)
    for rank in run.ranks:
        lines += _damage(rank)
    if bubble is not None:
        lines += _bubble(bubble)
    return lines


def _stages(stages: list[int]) -> str:
    """`PP 4` where files of all stages from the first on are there; else the stages they are of."""
    if len(stages) > 1 and stages == list(range(len(stages))):
        return f"PP {len(stages)}"
    some = ", ".join(f"PP{stage}" for stage in stages[:_MOST_NAMED])
    return some + (f" and {len(stages) - _MOST_NAMED} more" if len(stages) > _MOST_NAMED else " alone")


def _label(rank: RankAnalysis) -> str:
    identity = rank.identity
    if identity.stage is not None:
        return f"PP{identity.stage}" + (f" TP{identity.tp}" if identity.tp else "")
    return f"rank {identity.rank}" if identity.rank is not None else UNKNOWN


def _rank(rank: RankAnalysis) -> str:
    kernels = rank.kernels
    return (
        f"{_label(rank):>10} {kernels.total:>9} {kernels.replayed:>9} {kernels.eager:>8} {kernels.unknown:>8}"
        f" {kernels.communication:>7} {rank.launches.graph:>7} {rank.memory_operations:>8}"
    )


def _steps(rank: RankAnalysis) -> list[str]:
    if not rank.steps:
        return [f"{_label(rank):>10}  no step spans in this file"]
    counted: Counter[tuple[str, str]] = Counter()
    for result in rank.steps:
        kind = result.step.mode or result.step.name.split("#", maxsplit=1)[0]
        counted[_printable(kind), result.verdict.replace("_", " ")] += 1
    parts = ", ".join(f"{count} {kind} {verdict}" for (kind, verdict), count in counted.items())
    recorded = f", {rank.launches.recorded} launches recorded" if rank.launches.recorded else ""
    count = f"{len(rank.steps)} step{'s' if len(rank.steps) > 1 else ''}"
    beside = _beside(rank)
    typical_ms = median(result.step.duration_ns for result in rank.steps) / 1e6
    return [
        f"{_label(rank):>10}  {count} of {typical_ms:.{1 if typical_ms >= 1 else 3}f} ms on the host: {parts}{recorded}",
        *_prefill_and_decode(rank),
        *beside,
    ]


def _prefill_and_decode(rank: RankAnalysis) -> list[str]:
    """How the stage's GPU time is shared between the two, where both ran: prefill chunks between decodes hold these up."""
    times = {"prefill": 0, "decode": 0}
    for result in rank.steps:
        kind = "prefill" if result.step.is_prefill else "decode" if result.step.is_decode else None
        if kind is not None:
            times[kind] += result.replayed_gpu_ns + result.compute_eager_ns
    if not all(times.values()):
        return []
    whole = sum(times.values())
    counts = sum(result.step.is_prefill for result in rank.steps), sum(result.step.is_decode for result in rank.steps)
    return [
        f"{'':>10}  GPU time: {share(times['prefill'] / whole)} in {counts[0]} prefill, {share(times['decode'] / whole)} in {counts[1]}"
        f" decode steps"
    ]


def _beside(rank: RankAnalysis) -> list[str]:
    """Many launches beside graphs in steps that count as replayed: that they are too short for a leak must not hide them."""
    steps = [step for step in rank.steps if step.verdict == "replayed" and step.compute_kernels >= many_beside(step)]
    if not steps:
        return []
    kernels, graphs = sum(step.compute_kernels for step in steps), sum(step.graph_launches for step in steps)
    eager_ns = sum(step.compute_eager_ns for step in steps)
    part = eager_ns / max(eager_ns + sum(step.replayed_gpu_ns for step in steps), 1)
    return [
        f"{_label(rank):>10}  beside {graphs} graph launches {kernels} kernels run one by one, {share(part)} of the GPU time"
        f" (a leak from {share(LARGE_LEAK_SHARE)} on)"
    ]


def _damage(rank: RankAnalysis) -> list[str]:
    notes = list(rank.damage)
    if rank.dropped_events:
        notes.append(f"{rank.dropped_events} damaged events were lost")
    if rank.mended_events:
        notes.append(f"{rank.mended_events} damaged events were mended")
    return [f"{_label(rank):>10}  {_printable(Path(rank.path).name)}: {'; '.join(notes)}"] if notes else []


def _bubble(bubble: Bubble) -> list[str]:
    lines = [
        f"{'bubble':>10}  {share(bubble.fraction, 1)} of the stages' time over {bubble.window_us / 1000:.1f} ms;"
        f" busiest: PP{bubble.critical_stage}"
    ]
    for load in bubble.per_stage:
        busy = round(load.busy_fraction * _BAR)
        collective = min(round(load.collective_fraction * _BAR), _BAR - busy)
        waiting = min(round(load.communication_fraction * _BAR), _BAR - busy - collective)
        bar = "█" * busy + "▓" * collective + "▒" * waiting + "·" * (_BAR - busy - collective - waiting)
        parts = (("busy", load.busy_fraction), ("waiting", load.communication_fraction), ("idle", load.idle_fraction))
        shares = "  ".join(f"{name} {share(part, 1):>7}" for name, part in parts)
        lines.append(f"{'PP' + str(load.stage):>10}  {bar} {shares}")
        if collective:
            lines.append(f"{'':>10}  ▓ in collectives among its own ranks {share(load.collective_fraction, 1)}")
    shares = "  ".join(f"{count}: {share(part)}" for count, part in enumerate(bubble.concurrency))
    return [*lines, f"{'':>10}  stages at work at once  {shares}"]


def _finding(finding: Finding) -> list[str]:
    stage = "" if finding.stage is None else f" (stage {finding.stage})"
    sign = _SIGNS.get(finding.severity, "·")
    lines = [f"{sign} {finding.id}{stage}, {finding.severity}: {_printable(finding.summary)}"]
    lines += [f"    {_printable(line)}" for line in finding.evidence]
    return [*lines, f"    → {finding.remedy}"]
