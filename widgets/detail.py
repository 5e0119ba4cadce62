"""The way down: one rank, one span with its stack, one source line, and the choice of another server."""

from __future__ import annotations

from collections.abc import Sequence

from ppscope.views import MOST_SPANS, PhaseStyle, RankRow, Span, ThreadStacks
from ppscope.widgets.listing import Item, Listing
from ppscope.widgets.panel_stacks import sites, stack_text
from ppscope.widgets.text import (
    UNKNOWN,
    Line,
    bar,
    clean,
    cut_left,
    duration,
    elapsed,
    flowed,
    joined,
    left,
    number,
    percent,
    right,
    width_of,
)

Frame = tuple[str, str, "int | None"]


def phase_label(phases: Sequence[PhaseStyle], index: int | None) -> str:
    """A phase's label, `–` for an index that is not known."""
    return clean(phases[index].label) if index is not None and 0 <= index < len(phases) else UNKNOWN


def rank_listing(
    row: RankRow, spans: Sequence[Span], phases: Sequence[PhaseStyle], origin_ns: int, width: int
) -> Listing:
    """A rank's facts and its spans in the window, newest first."""
    by = "emulated" if row.gpu_source == "emulated" else f"by {clean(row.gpu_source or UNKNOWN)}"
    gpu = UNKNOWN if row.gpu_index is None else f"{row.gpu_index} ({by})"
    state: Line = (("alive", "good"),) if row.alive else ((f"exited: {clean(row.exit_reason or 'gone')}", "bad"),)
    if row.alive and row.exit_reason:
        state = ((clean(row.exit_reason), "warn"),)
    facts: list[Line] = [
        (("pid ", "dim"), (str(row.pid), "bold")),
        state,
        (("gpu ", "dim"), (gpu, "")),
        (("power ", "dim"), (f"{number(row.power_w)}/{number(row.power_limit_w)} W", "")),
        (("util ", "dim"), (number(row.util_percent, "%"), "")),
        (("main thread ", "dim"), (percent(row.host_cpu), ""), (" of a core", "dim")),
        (("threads ", "dim"), (number(row.threads), "")),
    ]
    shares: list[Line] = [
        ((phase_label(phases, index), f"t{index}"), (f" {share * 100:.0f} %", "")) for index, share in row.phases[:6]
    ]
    head: list[Line] = [((" ", ""), *line) for line in (*flowed(facts, width - 1), *flowed(shares, width - 1))]
    head.append(
        (
            (
                " " + right("start", 10) + right("length", 11) + right("micro-batch", 13) + "  " + left("phase", 24),
                "dim",
            ),
            (left("by", 9) + "batch", "dim"),
        )
    )
    items = [_span_item(span, phases, origin_ns) for span in reversed(spans[-MOST_SPANS:])]
    if not items:
        items = [Item((((("   no span of this rank in the window"), "dim"),),))]
    return Listing(tuple(items), tuple(head))


def batch_text(span: Span) -> str:
    """What ran in a span: forward mode, requests, tokens and the graph's fate; empty without a probe, which alone knows."""
    said = [] if span.mode is None else [span.mode.lower()]
    if span.batch_size is not None:
        said.append(f"{span.batch_size} req")
    if span.tokens is not None and span.tokens != span.batch_size:
        said.append(f"{span.tokens} tok")
    if span.graph is not None:
        said.append(f"graph: {span.graph.replace('_', ' ')}")
    return "  ".join(said)


def _span_item(span: Span, phases: Sequence[PhaseStyle], origin_ns: int) -> Item:
    length = span.end_ns - span.start_ns
    start = elapsed(span.start_ns - origin_ns, 3)
    batch = number(span.micro_batch)
    label = phase_label(phases, span.phase)
    line: Line = (
        (" " + right(start, 10), ""),
        (right(duration(length), 11), "bold"),
        (right(batch, 13), ""),
        ("  ", ""),
        (left(label, 24), f"t{span.phase}"),
        (left(span.provenance, 9), "dim"),
        (batch_text(span), ""),
    )
    copy = " ".join(
        f"{start} {duration(length)} micro-batch {batch} {label} ({span.provenance}) {batch_text(span)}".split()
    )
    return Item((line,), (span.start_ns, span.phase), copy)


def span_listing(
    span: Span, frames: Sequence[Frame], phases: Sequence[PhaseStyle], origin_ns: int, width: int
) -> Listing:
    """One span's facts and its stack, innermost frame first."""
    head: list[Line] = [
        (
            (" ", ""),
            *joined(
                [
                    (phase_label(phases, span.phase), f"t{span.phase} bold"),
                    (("from ", "dim"), (elapsed(span.start_ns - origin_ns, 3), "")),
                    (("for ", "dim"), (duration(span.end_ns - span.start_ns), "bold")),
                    (("micro-batch ", "dim"), (number(span.micro_batch), "")),
                    (ran, "") if (ran := batch_text(span)) else None,
                    (span.provenance, "dim"),
                ]
            ),
        ),
        ((" stack, innermost first", "dim"),),
    ]
    whole = stack_text(frames)
    items = [_frame_item(frame, depth, whole, width) for depth, frame in enumerate(reversed(frames))]
    if not items:
        items = [Item((((("   this span has no stack"), "dim"),),))]
    return Listing(tuple(items), tuple(head))


def _frame_item(frame: Frame, depth: int, copy: str, width: int) -> Item:
    function, file, line = frame
    start: Line = ((f" {depth:>3}  ", "faint"), (clean(function), "bold" if depth == 0 else ""))
    place = f"{clean(file)}{'' if line is None else f':{line}'}"
    room = width - width_of(start) - 3
    return Item(((*start, ("  " + cut_left(place, max(8, room)), "dim")),), (depth, frame), copy)


def source_listing(frame: Frame, threads: Sequence[ThreadStacks], width: int) -> Listing:
    """One source line: what share of the last seconds it has, who calls it, and what it calls."""
    function, file, line = frame
    place = f"{clean(file)}{'' if line is None else f':{line}'}"
    found = sites(threads, function, file)
    total = sum(node.total for _, node in found)
    own = sum(node.own for _, node in found)
    head: list[Line] = [
        ((" ", ""), (clean(function), "bold"), ("  " + cut_left(place, max(8, width - len(function) - 5)), "accent")),
        (
            (" ", ""),
            *joined(
                [
                    (("of the last seconds ", "dim"), (percent(total) if found else UNKNOWN, "bold")),
                    (("in itself ", "dim"), (percent(own) if found else UNKNOWN, "bold")),
                ]
            ),
        ),
    ]
    items: list[Item] = []
    copy = f"{function} ({place})"
    for path, node in found:
        callers = " › ".join(clean(name) for name, _, _ in path[-4:]) or "the thread"
        items.append(
            Item((((f" {node.total * 100:5.1f} % ", ""), ("called by  ", "dim"), (callers, "")),), ("by", path), copy)
        )
        for child in sorted(node.children, key=lambda child: -child.total):
            where = f"{clean(child.file)}{'' if child.line is None else f':{child.line}'}"
            text: Line = (
                (f" {child.total * 100:5.1f} % ", ""),
                ("calls      ", "dim"),
                (clean(child.function), "" if child.phase is None else f"t{child.phase}"),
                (f"  {where}", "dim"),
                ("  " + bar(child.total, 8), "faint"),
            )
            items.append(Item((text,), ("calls", child.function, child.file), copy))
    if not items:
        items = [Item((((("   not on a stack in the last seconds"), "dim"),),), None, copy)]
    return Listing(tuple(items), tuple(head))


def candidates_listing(candidates: Sequence[tuple[int, str]], width: int) -> Listing:
    """Servers to attach to instead."""
    items = [
        Item((((right(str(pid), 10), "bold"), (f"  {clean(name)}", "")),), pid, f"{pid} {clean(name)}")
        for pid, name in candidates
    ]
    return Listing(tuple(items), (((" the server is gone; attach to", "dim"),),))
