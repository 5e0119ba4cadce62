"""Did each step replay its graph: two tiers, with the normal launches beside a replay learned from the rank itself.

Tier A: a decode step without a graph launch that launches its kernels one by one missed the graph. Tier B: a step that replayed
leaks when it launches a kernel that its rank's replayed steps do not (attention metadata, input copies and sampling are normal), or when
the launches beside the replay are many and take a large share of the GPU time, normal or not (sglang-omni #921: 2,954 launches beside
one graph). Communication kernels and memory operations are left out of both: pipeline send and receive are eager by nature.
"""

from __future__ import annotations

from array import array
from collections import Counter
from difflib import SequenceMatcher
from functools import reduce
from operator import and_
from statistics import median

import msgspec

from ppscope.figures import share
from ppscope.trace.launches import NONE, Launches, Origin
from ppscope.trace.names import CallKind, short_kernel_name
from ppscope.trace.steps import Step, StepFinder

BASELINE_STEPS = 5
"""Replayed steps of one kind that it takes to call anything normal."""
BASELINE_SHARE = 0.8
MISSED_KERNELS = 30
MISSED_SHARE = 0.2
LARGE_LEAK_KERNELS = 30
LARGE_LEAK_SHARE = 0.2
# A graph captured in pieces has a few eager kernels between any two of them, by design (attention, KV writes).
PIECEWISE_KERNELS = 8

_GRAPH = ""


class StepResult(msgspec.Struct, gc=False):
    """A step, what was launched in it, and the verdict.

    Kernel counts go by correlation alone, communication included; what is called compute has none, `compute_kernels` are the eager
    ones. GPU times are sums of kernel durations in nanoseconds; `gpu_start_ns` to `gpu_end_ns`, on the file's clock, is the extent of
    its kernels without communication, None without any. `verdict` is `replayed`, `eager`, `leak`, `expected_eager` or `unknown`;
    `reason` says why in a line.
    """

    step: Step
    graph_launches: int = 0
    launches: int = 0
    recorded: int = 0
    replayed_kernels: int = 0
    eager_kernels: int = 0
    compute_kernels: int = 0
    memory_operations: int = 0
    replayed_gpu_ns: int = 0
    replayed_compute_ns: int = 0
    eager_gpu_ns: int = 0
    compute_eager_ns: int = 0
    gpu_start_ns: int | None = None
    gpu_end_ns: int | None = None
    verdict: str = "unknown"
    reason: str = ""
    leaks: list[int] = []
    """GPU event indices of the launches that the baseline does not hold."""


class Judged(msgspec.Struct, gc=False):
    """All steps of a rank; `step_of_call[c]` and `step_of_gpu[g]` are step indices or NONE.

    `median_replay_kernels` is None where no decode step replayed. `baseline` are (kernel, launches) beside a replay that are normal here,
    None where too few steps replayed to know.
    """

    steps: list[StepResult]
    step_of_call: array[int]
    step_of_gpu: array[int]
    median_replay_kernels: int | None
    baseline: list[tuple[str, int]] | None


def judge(launches: Launches, steps: list[Step]) -> Judged:
    """Assigns every launch to its step by CPU time and thread, every kernel to its launch's step, and judges the steps."""
    calls, gpu = launches.trace.calls, launches.trace.gpu
    results = [StepResult(step, leaks=[]) for step in steps]
    finder = StepFinder(steps)
    step_of_call = array("l", [NONE]) * len(calls)
    sequences: list[list[tuple[int, int]]] = [[] for _ in steps]
    for index, kind in enumerate(calls.kind):
        if kind in (CallKind.BEGIN_CAPTURE, CallKind.END_CAPTURE):
            continue
        found = finder.find(calls.thread[index], calls.start_ns[index])
        if found is None:
            continue
        step_of_call[index] = found
        result = results[found]
        if kind == CallKind.GRAPH_LAUNCH:
            result.graph_launches += 1
            sequences[found].append((calls.start_ns[index], NONE))
        elif kind == CallKind.LAUNCH:
            result.launches += 1
            result.recorded += launches.recorded[index]
    step_of_gpu = array("l", [step_of_call[call] if call != NONE else NONE for call in launches.call])
    for index, found in enumerate(step_of_gpu):
        if found == NONE:
            continue
        result = results[found]
        origin, duration_ns = launches.origin[index], gpu.duration_ns[index]
        if origin != Origin.MEMORY and not launches.communicates(index):
            start_ns, end_ns = gpu.start_ns[index], gpu.start_ns[index] + duration_ns
            result.gpu_start_ns = start_ns if result.gpu_start_ns is None else min(result.gpu_start_ns, start_ns)
            result.gpu_end_ns = end_ns if result.gpu_end_ns is None else max(result.gpu_end_ns, end_ns)
        if origin == Origin.REPLAYED:
            result.replayed_kernels += 1
            result.replayed_gpu_ns += duration_ns
            if not launches.communicates(index):
                result.replayed_compute_ns += duration_ns
        elif origin == Origin.EAGER:
            result.eager_kernels += 1
            result.eager_gpu_ns += duration_ns
            if not launches.communicates(index):
                result.compute_kernels += 1
                result.compute_eager_ns += duration_ns
                sequences[found].append((calls.start_ns[launches.call[index]], index))
        elif origin == Origin.MEMORY:
            result.memory_operations += 1
    names = [short_kernel_name(name) for name in launches.trace.names] if results else []
    ordered = [[index for _, index in sorted(sequence)] for sequence in sequences]
    baseline = _find_leaks(results, ordered, [names[number] for number in gpu.name] if results else [])
    return _verdicts(results, step_of_call, step_of_gpu, baseline)


def _verdicts(
    results: list[StepResult], step_of_call: array[int], step_of_gpu: array[int], baseline: list[tuple[str, int]] | None
) -> Judged:
    replays = [result.replayed_kernels for result in results if result.step.is_decode and result.replayed_kernels]
    eager = [result.compute_kernels for result in results if result.step.is_decode and not result.graph_launches]
    typical = median(replays or eager or [0])
    missed = max(min(MISSED_KERNELS, MISSED_SHARE * typical), 1) if typical else MISSED_KERNELS
    expectation = (
        f"its decode steps replay {median(replays):.0f} kernels"
        if replays
        else "no decode step of this rank replays a graph"
    )
    for result in results:
        result.verdict, result.reason = _verdict(result, missed, expectation)
    return Judged(results, step_of_call, step_of_gpu, int(median(replays)) if replays else None, baseline)


def _verdict(result: StepResult, missed: float, expectation: str) -> tuple[str, str]:
    step = result.step
    if step.is_prefill or step.mode == "IDLE":
        if result.graph_launches:
            return "replayed", f"{result.graph_launches} graph launches"
        if result.eager_kernels:
            return "expected_eager", "prefill runs without a graph here"
        return "unknown", "no kernels of this step in the file"
    if result.graph_launches:
        if result.leaks:
            return "leak", f"{len(result.leaks)} launches that its other replayed steps do not have"
        # Without the graph's kernels in the file any launch beside it takes all of the time.
        part = _eager_share(result) if result.replayed_kernels else 0.0
        if part >= LARGE_LEAK_SHARE and result.compute_kernels >= many_beside(result):
            return "leak", f"{result.compute_kernels} launches beside the graph take {share(part)} of the GPU time"
        return "replayed", f"{result.graph_launches} graph launches"
    if result.recorded:
        return "unknown", "launches of this step were recorded, not run"
    if result.compute_kernels >= missed:
        return "eager", f"{result.compute_kernels} kernels launched one by one, no graph launch; {expectation}"
    if not result.eager_kernels:
        return "unknown", "no kernels of this step in the file"
    return "unknown", "too few kernels of this step in the file to tell"


def many_beside(result: StepResult) -> int:
    """How many launches beside the graphs of a step are more than graphs in pieces have by design."""
    return max(LARGE_LEAK_KERNELS, PIECEWISE_KERNELS * result.graph_launches)


def _eager_share(result: StepResult) -> float:
    total_ns = result.replayed_gpu_ns + result.compute_eager_ns
    return result.compute_eager_ns / total_ns if total_ns else 0.0


def _find_leaks(
    results: list[StepResult], sequences: list[list[int]], names: list[str]
) -> list[tuple[str, int]] | None:
    """Marks the launches beyond the baseline; returns the largest group's baseline."""
    groups: dict[tuple[str | None, int | None], list[int]] = {}
    counted: dict[int, Counter[str]] = {}
    for index, result in enumerate(results):
        if result.graph_launches and not result.step.is_prefill and result.step.mode != "IDLE":
            groups.setdefault((result.step.mode, result.step.batch_size), []).append(index)
            counted[index] = Counter(names[at] for at in sequences[index] if at != NONE)
    largest: list[tuple[str, int]] | None = None
    by_mode: dict[str | None, tuple[Counter[str], list[str]]] = {}
    for (mode, _), held in groups.items():
        few = len(held) < BASELINE_STEPS
        # Batch sizes seen too seldom to know alone are judged by all steps of their mode.
        every = [index for key, others in groups.items() if key[0] == mode for index in others] if few else held
        if len(every) < BASELINE_STEPS:
            continue
        found = by_mode.get(mode) if few else None
        if found is None:
            normal = _baseline([counted[index] for index in every])
            found = normal, _reference([sequences[index] for index in every], names, normal)
            if few:
                by_mode[mode] = found
        normal, reference = found
        # What every step of a size launches belongs to the size: SGLang clears what it pads up to a captured one, beside the graph
        # (cuda_graph_runner.py 289 in 0.5.11).
        allowed = normal | reduce(and_, (counted[index] for index in held)) if few else normal
        for index in held:
            results[index].leaks = _extra(sequences[index], names, allowed, reference)
        if largest is None or len(normal) > len(largest):
            largest = sorted(normal.items())
    return largest


def _baseline(counted: list[Counter[str]]) -> Counter[str]:
    place = -(-len(counted) * BASELINE_SHARE // 1)
    normal: Counter[str] = Counter()
    for name in set().union(*counted):
        count = sorted((counts[name] for counts in counted), reverse=True)[int(place) - 1]
        if count:
            normal[name] = count
    return normal


def _reference(sequences: list[list[int]], names: list[str], normal: Counter[str]) -> list[str]:
    """The most common order of launches among the steps that hold the baseline and nothing else."""
    orders = Counter(tuple(_GRAPH if at == NONE else names[at] for at in sequence) for sequence in sequences)
    for order, _ in orders.most_common():
        if Counter(name for name in order if name != _GRAPH) == normal:
            return list(order)
    return []


def _extra(sequence: list[int], names: list[str], normal: Counter[str], reference: list[str]) -> list[int]:
    by_name: dict[str, list[int]] = {}
    for at in sequence:
        if at != NONE:
            by_name.setdefault(names[at], []).append(at)
    extra = {name: len(held) - normal[name] for name, held in by_name.items() if len(held) > normal[name]}
    if not extra:
        return []
    leaks = [at for name in extra if not normal[name] for at in by_name[name]]
    repeated = {name for name in extra if normal[name]}
    if repeated:
        # More launches of a kernel than normal: the extra ones are those that break the usual order.
        order = [_GRAPH if at == NONE else names[at] for at in sequence]
        matched: set[int] = set()
        for block in SequenceMatcher(None, order, reference, autojunk=False).get_matching_blocks():
            matched.update(range(block.a, block.a + block.size))
        for name in repeated:
            held = [
                (place in matched, -place, at) for place, at in enumerate(sequence) if at != NONE and names[at] == name
            ]
            leaks.extend(at for _, _, at in sorted(held)[: extra[name]])
    return sorted(leaks)
