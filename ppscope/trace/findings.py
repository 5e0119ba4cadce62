"""What traces prove about a run, as findings with the stable ids of all of ppscope; every claim is exact."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from ppscope.figures import share
from ppscope.trace.align import Run
from ppscope.trace.analyse import EagerLaunch, RankAnalysis
from ppscope.trace.bubble import Bubble
from ppscope.trace.names import short_kernel_name
from ppscope.trace.stage_findings import bubbles, imbalance
from ppscope.trace.verdicts import StepResult
from ppscope.views import Finding

_LINES = 5


def run_findings(run: Run, bubble: Bubble | None, graphs_expected: bool | None = None) -> list[Finding]:
    """The findings of one run, gravest first. `graphs_expected` is what the server resolved for decode, None when nobody knows."""
    found = [_eager_decode(run, graphs_expected), _eager_leak(run)]
    if bubble is not None:
        found += [bubbles(run, bubble), imbalance(run, bubble)]
    return [finding for finding in found if finding is not None]


def _judged_decode(run: Run) -> list[tuple[RankAnalysis, StepResult]]:
    judged = ("replayed", "leak", "eager")
    return [(rank, step) for rank in run.ranks for step in rank.steps if step.step.is_decode and step.verdict in judged]


def _stage(ranks: list[RankAnalysis]) -> int | None:
    stages = {rank.identity.stage for rank in ranks}
    return stages.pop() if len(stages) == 1 else None


def _where(run: Run, ranks: list[RankAnalysis]) -> str:
    hit = sorted({rank.identity.stage for rank in ranks if rank.identity.stage is not None})
    if not hit:
        return _which(run, ranks)
    return " on every stage" if hit == sorted(run.stages) and len(hit) > 1 else f" on stage {', '.join(map(str, hit))}"


def _which(run: Run, ranks: list[RankAnalysis]) -> str:
    """Files that know no stage, by rank or by name; nothing to say of a lone one."""
    if len(run.ranks) < 2:
        return ""
    if len(ranks) == len(run.ranks):
        return " in every file"
    numbers = [rank.identity.rank for rank in ranks]
    known = [str(number) for number in numbers if number is not None]
    names = known if len(known) == len(numbers) else [Path(rank.path).name for rank in ranks]
    more = f" and {len(names) - _LINES} more" if len(names) > _LINES else ""
    return f" {'on rank' if names is known else 'in'} {', '.join(names[:_LINES])}{more}"


def _unique(ranks: list[RankAnalysis]) -> list[RankAnalysis]:
    return list({rank.path: rank for rank in ranks}.values())


def _eager_decode(run: Run, graphs_expected: bool | None) -> Finding | None:
    decode = _judged_decode(run)
    eager = [(rank, step) for rank, step in decode if step.verdict == "eager"]
    if not eager:
        return None
    replayed = [step for _, step in decode if step.verdict != "eager"]
    ranks = _unique([rank for rank, _ in eager])
    kernels = sorted(step.compute_kernels for _, step in eager)
    evidence = [
        f"{len(eager)} of {len(decode)} decode steps{_where(run, ranks)} launched {_span(kernels)} kernels"
        " one by one, without a graph launch"
    ]
    sizes = [step.step.batch_size for _, step in eager if step.step.batch_size is not None]
    replayed_sizes = [step.step.batch_size for step in replayed if step.step.batch_size is not None]
    remedy = (
        "Find the rule that turned decode graphs off: `ppscope rules`, or look for --disable-cuda-graph in the launch command and at"
        " the last `cuda graph: False` lines of the server log."
    )
    if not replayed:
        expectation = {
            True: "the server resolved decode graphs on",
            False: "the server resolved decode graphs off",
            None: "no decode step of this capture replayed a graph: graphs look switched off",
        }
        evidence.append(expectation[graphs_expected])
    else:
        remedy = (
            "The runner refused the graph for these steps alone: look at what their batches hold. A batch above the captured sizes, or"
            " a request that needs what no graph was captured for (hidden states, input embeddings), runs eager on its stage."
        )
        medians = [rank.median_replay_kernels for rank in ranks if rank.median_replay_kernels]
        if medians:
            evidence.append(f"its other decode steps replay {min(medians)} kernels from graphs (median)")
        if sizes and replayed_sizes and min(sizes) > max(replayed_sizes):
            evidence.append(
                f"every eager step has a batch of {min(sizes)} or more, every replayed one {max(replayed_sizes)} or less"
            )
            remedy = (
                f"Capture larger batches: --cuda-graph-max-bs {max(sizes)} (0.5.15 and later: decode max_bs of --cuda-graph-config);"
                " it costs GPU memory and start-up time."
            )
    evidence += _lines(
        [row for rank in ranks for row in rank.rows if not row.expected and _verdict(rank, row) == "eager"]
    )
    most = len(eager) * 2 > len(decode)
    return Finding(
        id="graphs.eager_decode",
        severity="high" if most else "medium",
        stage=_stage(ranks),
        summary=f"{len(eager)} of {len(decode)} decode steps run eager, without a CUDA graph{_which(run, ranks) if not run.stages else ''}",
        evidence=tuple(evidence),
        remedy=remedy,
        provenance="exact",
    )


def _span(ordered: list[int]) -> str:
    return str(ordered[0]) if ordered[0] == ordered[-1] else f"{ordered[0]}–{ordered[-1]}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('ch') else 's'}"


def _verdict(rank: RankAnalysis, row: EagerLaunch) -> str | None:
    return None if row.step is None else rank.steps[row.step].verdict


def _eager_leak(run: Run) -> Finding | None:
    leaking = [(rank, step) for rank in run.ranks for step in rank.steps if step.verdict == "leak"]
    if not leaking:
        return None
    ranks = _unique([rank for rank, _ in leaking])
    replayed = sum(step.graph_launches > 0 and not step.step.is_prefill for rank in ranks for step in rank.steps)
    extra = sum(len(step.leaks) for _, step in leaking)
    large = [step for _, step in leaking if not step.leaks]
    evidence = []
    if extra:
        evidence.append(
            f"{_count(extra, 'launch')} in {_count(len(leaking) - len(large), 'step')} beyond what the other replayed steps launch"
        )
    if large:
        part = sum(step.compute_eager_ns for step in large) / max(
            sum(step.compute_eager_ns + step.replayed_gpu_ns for step in large), 1
        )
        evidence.append(
            f"{large[0].compute_kernels} launches beside the graph in a step take {share(part)} of its GPU time"
        )
    evidence += _lines(
        [row for rank in ranks for row in rank.rows if not row.expected and _verdict(rank, row) == "leak"]
    )
    return Finding(
        id="graphs.eager_leak",
        severity="medium",
        stage=_stage(ranks),
        summary=f"{len(leaking)} of {replayed} replayed steps launch kernels beside the graph{_where(run, ranks)}",
        evidence=tuple(evidence),
        remedy="Move the work named above into the captured forward, or out of the decode step; a profile with"
        " with_stack:true names its lines.",
        provenance="exact",
    )


def _lines(rows: list[EagerLaunch]) -> list[str]:
    """The launches that come up most, each with its operator and line where the trace has them."""
    counted = Counter((short_kernel_name(row.kernel), row.caller.op, row.caller.line) for row in rows)
    spent: Counter[tuple[str, str | None, str | None]] = Counter()
    for row in rows:
        spent[short_kernel_name(row.kernel), row.caller.op, row.caller.line] += row.duration_ns
    lines = []
    for key, count in counted.most_common(_LINES):
        kernel, op, line = key
        source = "".join(f", {part}" for part in (op, line) if part)
        lines.append(f"{count}× {kernel}{source}, {spent[key] / 1000:.0f} µs on the GPU")
    if len(counted) > _LINES:
        lines.append(f"and {len(counted) - _LINES} other kernels")
    return lines
