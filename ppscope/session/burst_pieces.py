"""From a burst's spans to the disjoint pieces of a lane: what the host thread did, and what the GPU did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ppscope.records import BurstRank
from ppscope.session.burst_lane import Piece
from ppscope.trace.step_names import StepFamily, parse_step

SPAN_PHASES = {
    "recv_requests": "wait_requests",
    "process_input_requests": "intake",
    "send_reqs_to_next_stage": "send",
    "get_next_batch_to_run": "schedule",
    "run_batch": "prepare",
    "process_batch_result": "postprocess",
    "copy_result_to_cpu": "wait_gpu",
    "send_proxy_dict_to_next_stage": "send",
    "send_res_dict_to_next_stage": "send",
    "recv_res_dict_from_prev_stage": "recv_outputs",
    "send_recv_res_dict": "recv_outputs",
}
"""Phases of the loop's own annotations (scheduler_pp_mixin.py, 0.5.9 to 0.5.23), also with `scheduler.` in front (0.5.15 on)."""
RECEIVES = ("gloo:recv", "nccl:recv")
"""Receiving activations has no annotation of the loop's: it shows as a receive outside of all the others."""
GPU_PHASES = ("replay", "eager", "other", "graph_input", "wait_peers")
"""Phase of each GPU class: replayed, eager, unknown, memory, communication."""
GPU_RANK = (0, 0, 1, 3, 2)
"""Which class is drawn where streams overlap: the smallest."""
GPU_JOIN_NS = 5_000
SHORT_IDLE_NS = 1_000


def host_pieces(record: BurstRank, phases: Mapping[str, int]) -> list[Piece]:
    """What the scheduler's thread did: at each instant the span that began last, receives only where nothing else is."""
    steps = {step.start_ns: step.graph_launches > 0 for step in record.steps}
    named = [_phase_of(name, phases) for name in record.names]
    receive = [name.startswith(RECEIVES) for name in record.names]
    inner: list[tuple[int, int, int]] = []
    below: list[tuple[int, int, int]] = []
    for name, offset, length in zip(record.host_names, record.host_starts_ns, record.host_lengths_ns, strict=True):
        start, phase = record.start_ns + offset, named[name]
        if phase is None:
            continue
        if start in steps:
            phase = phases["replay" if steps[start] else "eager"]
        (below if receive[name] else inner).append((start, start + length, phase))
    pieces = _innermost(sorted(inner))
    return _fill(pieces, _innermost(sorted(below)))


def _phase_of(name: str, phases: Mapping[str, int]) -> int | None:
    step = parse_step(name)
    if step is not None and step.family is not StepFamily.SGLANG_RUN_BATCH:  # run_batch is a phase of its own, too
        return phases["eager"]
    if name.startswith(RECEIVES):
        return phases["recv_activations"]
    return phases.get(SPAN_PHASES.get(name.removeprefix("scheduler."), ""))


def _innermost(spans: list[tuple[int, int, int]]) -> list[Piece]:
    """Disjoint pieces, each in the phase of the span that began last among those that hold it."""
    pieces: list[Piece] = []
    held: list[tuple[int, int]] = []
    cursor = 0

    def advance(upto: int | None) -> None:
        nonlocal cursor
        while held and (upto is None or cursor < upto):
            end, phase = held[-1]
            edge = end if upto is None else min(end, upto)
            if edge > cursor:
                _append(pieces, cursor, edge, phase)
                cursor = edge
            if end <= cursor:
                held.pop()
        if upto is not None:
            cursor = max(cursor, upto)

    for start, end, phase in spans:
        advance(start)
        held.append((end, phase))
    advance(None)
    return pieces


def _append(pieces: list[Piece], start: int, end: int, phase: int, mark: bool = False) -> None:
    if pieces and pieces[-1][1] == start and pieces[-1][2:] == (phase, mark):
        pieces[-1] = (pieces[-1][0], end, phase, mark)
    else:
        pieces.append((start, end, phase, mark))


def _fill(pieces: list[Piece], rest: list[Piece]) -> list[Piece]:
    """`rest` laid into the holes between the pieces."""
    filled: list[Piece] = list(pieces)
    at = 0
    for start, end, phase, mark in rest:
        while at < len(pieces) and pieces[at][1] <= start:
            at += 1
        place, cursor = at, start
        while cursor < end:
            edge = min(end, pieces[place][0]) if place < len(pieces) else end
            if edge > cursor:
                filled.append((cursor, edge, phase, mark))
            if place >= len(pieces):
                break
            cursor = max(cursor, pieces[place][1])
            place += 1
    filled.sort()
    return filled


def gpu_pieces(record: BurstRank, phases: Mapping[str, int], mark: bool) -> list[Piece]:
    """What the GPU did, idle between; computing hides communication beside it. `mark` says whether launches out of place are marked."""
    by_class = [phases[name] for name in GPU_PHASES]
    rows = sorted(
        (start, start + length, GPU_RANK[kind], by_class[kind], bool(odd) and mark)
        for kind, start, length, odd in zip(
            record.gpu_classes, record.gpu_starts_ns, record.gpu_lengths_ns, record.gpu_unexpected, strict=True
        )
        if 0 <= kind < len(GPU_PHASES) and length > 0
    )
    pieces: list[Piece] = []
    for order in sorted(set(GPU_RANK)):
        layer: list[Piece] = []
        for start, end, rank, phase, odd in rows:
            if rank == order and end > (layer[-1][1] if layer else -1):
                begin = max(start, layer[-1][1]) if layer else start
                if layer and layer[-1][2:] == (phase, odd) and begin - layer[-1][1] <= GPU_JOIN_NS:
                    layer[-1] = (layer[-1][0], end, phase, odd)
                else:
                    layer.append((begin, end, phase, odd))
        pieces = _fill(pieces, layer) if pieces else layer
    if not pieces:
        return []
    return list(_with_idle(record, pieces, phases["idle"]))


def _with_idle(record: BurstRank, pieces: list[Piece], idle: int) -> Iterator[Piece]:
    base, cursor = record.start_ns, 0
    for start, end, phase, mark in pieces:
        if start - cursor > SHORT_IDLE_NS:
            yield base + cursor, base + start, idle, False
        yield base + start, base + end, phase, mark
        cursor = end
    if record.end_ns > base + cursor:
        yield base + cursor, record.end_ns, idle, False
