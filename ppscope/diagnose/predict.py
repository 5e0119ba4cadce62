"""What a change would bring, from measured stage times: a simulation calibrated by the present throughput."""

from __future__ import annotations

import math
from typing import NamedTuple

from ppscope.diagnose import say
from ppscope.diagnose.cpu_server import cpu_stage, message_s, slowed
from ppscope.diagnose.evidence import Evidence, StageEvidence
from ppscope.diagnose.layers import layer_cost
from ppscope.diagnose.whatif import Change, Pipeline, Stage, spread, tokens_per_s

RANGE = 0.2
NO_GAIN = 0.1
TRUSTED = 0.5
"""The model of the present server must give its measured throughput to within this share, or nothing is predicted."""
_LAUNCH = ("replay", "eager", "graph_input", "prepare", "sample")
_SEVERAL = 1.25
_NOTICED = 0.1
_HOST = ("schedule", "postprocess", "send")
_EVERY_TURN = "intake"
"""What the loop does for an empty slot as well: were it laid on the few slots with a batch, spreading them would cost it anew."""


class Prediction(NamedTuple):
    """Tokens a second now and after the change, with its range and what it rests on."""

    now: float
    then: float
    low: float
    high: float
    assumptions: tuple[str, ...]


def predict(evidence: Evidence, change: Change) -> Prediction | None:
    """Tokens a second after a change; None without busy evidence, throughput, slots and the size of a micro-batch.

    Host and busy time are divided by the passes a second, the intake of requests by the turns of the loop.
    The ratio of two simulations scales the measured throughput. On a CPU server stages and the threads that carry their messages
    share the cores, and their work is stretched first, until the simulation gives the measured rate: others use them too.
    """
    now = throughput(evidence)
    before = present(evidence)
    if before is None or not now:
        return None
    if before.synchronous:
        before = slowed(before, now)
    modelled = tokens_per_s(before)
    if not modelled or abs(modelled - now) > TRUSTED * now:
        return None
    after = changed(evidence, before, change)
    if after is None:
        return None
    then = now * tokens_per_s(after) / modelled
    assumptions = ["the same load"]
    if change.slots_used is not None and not any(stage.each_s for stage in before.stages):
        assumptions.append("a forward pass takes as long for fewer requests")
    elif change.slots_used is not None:
        assumptions.append("only attention goes with requests")
    if change.requests is not None:
        assumptions[0] = f"{change.requests} requests"
    if change.layers is not None:
        assumptions.append("time goes with layers")
    if before.cores is not None:
        assumptions.append(f"{before.cores} core{'s' if before.cores > 1 else ''} as crowded as now")
    return Prediction(now, then, then * (1 - RANGE), then * (1 + RANGE), tuple(assumptions))


def predicted(evidence: Evidence, change: Change) -> str:
    """The prediction in a sentence; empty where there is none."""
    found = predict(evidence, change)
    if found is None:
        return ""
    if change.slots_used is not None and found.then < (1 + NO_GAIN) * found.now:
        return (
            "No gain is predicted, because how much sooner a forward pass of fewer requests ends is not known: with passes as"
            f" long as now, tokens/s stay near {found.now:.0f}."
        )
    if abs(found.then - found.now) < NO_GAIN * found.now:
        return f"Predicted: about the {found.now:.0f} tokens/s of now, assuming {' and '.join(found.assumptions)}."
    return (
        f"Predicted: {found.low:.0f}–{found.high:.0f} tokens/s instead of {found.now:.0f}, assuming"
        f" {' and '.join(found.assumptions)}."
    )


def throughput(evidence: Evidence) -> float | None:
    """Decoded tokens a second: by counters, else over all decode lines of the window, since a single line tells of a moment."""
    lines = [line for line in evidence.batches if line.mode == "decode" and line.running and line.tokens_per_s]
    first = min((line.pp or 0 for line in lines), default=0)
    lines = [line for line in lines if (line.pp or 0) == first]
    if evidence.load.source != "log" or evidence.server.dp_size > 1 or not lines:
        return evidence.load.tokens_per_s
    # Every line tells of as many passes, so its tokens go with the size of its micro-batch.
    tokens = sum(line.running or 0 for line in lines)
    return tokens / sum((line.running or 0) / (line.tokens_per_s or 1.0) for line in lines)


def present(evidence: Evidence) -> Pipeline | None:
    """The server as it is, as a pipeline to simulate; None where a figure is missing."""
    busy, slots, occupied = say.busy_by_stage(evidence), evidence.occupancy.slots, evidence.occupancy.mean
    size, rate = evidence.micro_batch, throughput(evidence)
    if busy is None or slots is None or occupied is None or not size or not rate or evidence.server.dp_size > 1:
        return None
    depth = slots - evidence.server.pp_size
    if depth < 0 or len(busy) != evidence.server.pp_size or max(busy.values()) <= 0:
        return None
    passes_per_s = rate / size
    synchronous = evidence.server.device == "cpu"
    used = _slots_used(evidence, occupied, slots)
    turns_per_s = passes_per_s * slots / used
    seen = [found for found in evidence.stages if found.dp == evidence.stages[0].dp]
    if synchronous:
        each_s = message_s(seen, passes_per_s, turns_per_s)
        made = [cpu_stage(found, busy[found.pp], size, passes_per_s, turns_per_s) for found in seen]
        stages = [stage._replace(message_s=each_s) for stage in made]
    else:
        stages = [_stage(found, busy[found.pp] / passes_per_s, passes_per_s, turns_per_s) for found in seen]
    cores = {core for found in evidence.stages for rank in found.ranks for core in rank.cores} if synchronous else set()
    return Pipeline(
        tuple(stages), spread(max(round(size * used), used), slots, used), depth, synchronous, len(cores) or None
    )


def _slots_used(evidence: Evidence, occupied: float, slots: int) -> int:
    """Whole slots in use: one more than the mean says where the samples show it, for they dwell longer in some slots than in others.

    On SGLang 0.5.23 two full slots of four gave 29 and 11, then 40 and 11 samples: 1.8 and 1.5 slots. A mean near one stays one:
    a lone request has moved.
    """
    used = round(occupied)
    if occupied >= _SEVERAL:
        counts = [count for _, count in evidence.slot_samples]
        used = max(used, min(sum(count >= _NOTICED * sum(counts) for count in counts), math.ceil(occupied)))
    return max(1, min(slots, used))


def _stage(stage: StageEvidence, forward_s: float, passes_per_s: float, turns_per_s: float) -> Stage:
    launch_s = sum(stage.phases.get(name, 0.0) for name in _LAUNCH) / passes_per_s
    host_s = sum(stage.phases.get(name, 0.0) for name in _HOST) / passes_per_s
    turn_s = stage.phases.get(_EVERY_TURN, 0.0) / turns_per_s
    return Stage(forward_s, launch_s, host_s + turn_s, turn_s)


def changed(evidence: Evidence, before: Pipeline, change: Change) -> Pipeline | None:
    """The pipeline after a change; None where the change needs what is not known."""
    stages, slots, depth = before.stages, before.slots, before.depth
    used = sum(1 for size in slots if size)
    if change.depth is not None:
        depth = change.depth
    total = len(stages) + depth
    if change.slots_used is not None:
        used = change.slots_used
    elif used == len(slots):
        used = total  # full slots stay full
    slots = spread(change.requests or sum(slots), total, used)
    if change.layers is not None:
        layers = [found.layers for stage in range(len(stages)) if (found := evidence.stage(stage)) and found.layers]
        size = sum(before.slots) / max(sum(1 for size in before.slots if size), 1)
        took = [stage.forward_s + stage.each_s * size for stage in stages]
        cost = layer_cost(layers, took)
        if cost is None or len(change.layers) != len(stages):
            return None
        factors = [
            (fixed + each * count) / was for was, (fixed, each), count in zip(took, cost, change.layers, strict=True)
        ]
        stages = tuple(
            stage._replace(forward_s=stage.forward_s * factor, each_s=stage.each_s * factor)
            for stage, factor in zip(stages, factors, strict=True)
        )
    if change.graphs:
        # The GPU's own work stays; the host no longer launches kernel by kernel.
        stages = tuple(stage._replace(launch_s=0.0) for stage in stages)
    return before._replace(stages=stages, slots=slots, depth=depth)
