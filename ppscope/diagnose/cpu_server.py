"""What stages of a server that computes on the CPU cost, from the kernel's account of their run time."""

from __future__ import annotations

from collections.abc import Sequence

from ppscope.diagnose.evidence import StageEvidence
from ppscope.diagnose.whatif import TENSORS, Pipeline, Stage, tokens_per_s

_MOST_CROWDED = 30.0
_HALVINGS = 12
_LAYERS = ("replay", "eager")
"""What goes through the layers; the other phases of a forward pass take as long with fewer of them."""
_FORWARD = (*_LAYERS, "graph_input", "prepare", "sample")


def cpu_stage(stage: StageEvidence, busy: float, size: float, passes_per_s: float, turns_per_s: float) -> Stage:
    """A stage that computes on the CPU. Its run time is the kernel's figure, for a stack at work may wait for a core.

    What is not the forward pass is the main thread's part of messages: one sent and one received a turn, two more of each with a
    batch. Measured on SGLang 0.5.23 (PP 4, two cores): about 1 ms for each pair, whatever the slots and the requests.
    """
    told = [(rank.host_cpu, rank.wait_share or 0.0) for rank in stage.ranks if rank.host_cpu]
    run = sum(ran for ran, _ in told) / len(told) if told else busy
    running = sum(ran / (ran + waited) for ran, waited in told) / len(told) if told else 1.0
    forward = min(busy * running, run)
    seen = sum(stage.phases.get(name, 0.0) for name in _FORWARD)
    through_layers = forward * sum(stage.phases.get(name, 0.0) for name in _LAYERS) / seen if seen else forward
    by_request = min((stage.by_request or 0.0) * running, through_layers)
    turn_s = (run - forward) / (turns_per_s + 2 * passes_per_s)
    return Stage(
        forward_s=(through_layers - by_request) / passes_per_s,
        host_s=(forward - through_layers) / passes_per_s + 3 * turn_s,
        empty_s=turn_s,
        each_s=by_request / passes_per_s / size,
    )


def message_s(stages: Sequence[StageEvidence], passes_per_s: float, turns_per_s: float) -> float:
    """Work of one message between stages: 0 where it is not known, or threads beside the main one compute as well.

    Every turn sends requests to each stage but the first, and one with a batch activations as well; outputs go to every stage.
    """
    carrying = 0.0
    for stage in stages:
        told = [
            rank.process_cpu - rank.host_cpu
            for rank in stage.ranks
            if rank.process_cpu is not None and rank.host_cpu is not None and rank.process_cpu <= 1.0
        ]
        if not told:
            return 0.0
        carrying += max(sum(told) / len(told), 0.0)
    links = len(stages) - 1
    return carrying / (links * turns_per_s + (2 * links + 1) * TENSORS * passes_per_s)


def slowed(pipeline: Pipeline, rate: float) -> Pipeline:
    """The same with all host time stretched until it gives the measured rate: what others take of these cores."""
    low, high = 1.0, _MOST_CROWDED
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if tokens_per_s(_stretched(pipeline, middle)) > rate else (low, middle)
    return _stretched(pipeline, low)


def _stretched(pipeline: Pipeline, factor: float) -> Pipeline:
    stages = tuple(Stage(*(seconds * factor for seconds in stage)) for stage in pipeline.stages)
    return pipeline._replace(stages=stages)
