"""The launches panel: what ran on the GPU, which kernel launches are eager, from which line and why."""

from __future__ import annotations

from collections.abc import Sequence

from ppscope.views import LaunchRow
from ppscope.widgets.listing import Item, Listing
from ppscope.widgets.panel_stacks import short_file
from ppscope.widgets.text import (
    UNKNOWN,
    Line,
    Span,
    clean,
    cut,
    cut_left,
    joined,
    left,
    number,
    percent,
    right,
    wrapped,
)

EMPTY = (
    "No launches have been seen. Kernel launches are known only from a profiler burst or a trace file:",
    "  ppscope trace DIR                what is in traces already written by /start_profile",
    "  ppscope launch -- CMD            a server started with the exact probe",
    "Until then the stacks tell graph replay from eager launches: see the Gantt and panel 3.",
)
NONE_READ = (
    "The burst's traces hold no kernel launches: on CPU there are none, on GPUs CUPTI recorded none.",
    "Its host spans are in the lanes, exact.",
)
MOST_ROWS = 300


def launches_listing(
    rows: Sequence[LaunchRow], can_burst: bool, width: int, text: str = "", kept: str = "", read: bool = False
) -> Listing:
    """One item per kernel, stage and origin, those out of place first, then by GPU time; without any, how to get them.

    `kept` is the folder of the burst's trace files, empty where they were not kept; `read` says that a burst was read.
    """
    if not rows:
        lines = list(NONE_READ if read else EMPTY)
        if can_burst and not read:
            lines.insert(1, "  p                                a burst of the running server, a few steps long")
        shown_lines = [row for line in lines for row in (wrapped(line, width - 2) if read else [line])]
        return Listing((Item(tuple(((f"  {line}", "dim"),) for line in shown_lines)),))
    wanted = text.casefold()
    shown = [row for row in rows if not wanted or wanted in _haystack(row)]
    ordered = sorted(shown, key=lambda row: (row.reason is None, -(row.gpu_us or 0.0), -row.count))
    if not ordered:
        return Listing((Item((((f"  no launch has {clean(text)!r}", "dim"),),)),))
    sites = width >= 110
    places = max(6, *(len(_place(row)) + 1 for row in ordered))
    columns = left("stage", places) + left("kind", 8) + right("launches", 9) + right("GPU ms", 10) + right("share", 7)
    columns += right("per step", 10) + right("gap µs", 9) + "  "
    head: Line = ((" " + columns + (left("op or line", 30) if sites else "") + "kernel", "dim"),)
    lead: tuple[Line, ...] = (((" trace files kept in ", "dim"), (clean(kept), "accent")),) if kept else ()
    return Listing(tuple(_item(row, places, sites, width) for row in ordered[:MOST_ROWS]), (*lead, head))


def _haystack(row: LaunchRow) -> str:
    return f"{_place(row)} {row.kind} {row.name} {row.op or ''} {row.file or ''}".casefold()


def _role(row: LaunchRow) -> str:
    if row.kind == "eager":
        return "bad" if row.reason else ""
    return "good" if row.kind == "replay" else "dim"


def site(row: LaunchRow) -> str:
    """Where a launch comes from: file and line, else the operator, else unknown."""
    if row.file is not None:
        return f"{short_file(row.file)}:{number(row.line)}"
    return clean(row.op) if row.op else UNKNOWN


def per_step(row: LaunchRow) -> str:
    """Launches in the steps that have it: `45` or `3–7`."""
    if not row.steps:
        return UNKNOWN
    return str(row.fewest) if row.fewest == row.most else f"{row.fewest}–{row.most}"


def _place(row: LaunchRow) -> str:
    """Its stage, with the data-parallel replica in front of all but the first one's."""
    if row.stage is None:
        return UNKNOWN
    return f"D{row.rank.dp}·PP{row.stage}" if row.rank is not None and row.rank.dp else f"PP{row.stage}"


def _item(row: LaunchRow, places: int, sites: bool, width: int) -> Item:
    stage = _place(row)
    gpu_ms = None if row.gpu_us is None else row.gpu_us / 1000
    spans: list[Span] = [
        (" " + left(stage, places), ""),
        (left(row.kind, 8), _role(row)),
        (right(number(row.count), 9), ""),
        (right(number(gpu_ms, digits=2), 10), "bold"),
        (right(percent(row.share), 7), "dim"),
        (right(per_step(row), 10), ""),
        (right(number(row.gap_us, digits=1), 9), "dim"),
        ("  ", ""),
    ]
    if sites:
        spans.append((left(cut_left(site(row), 29), 30), "accent"))
    spans.append((cut(row.name, max(10, width - places - (94 if sites else 57))), ""))
    copy = clean(f"{stage} {row.kind} {row.count}× {site(row)} {row.name} {row.reason or ''}".rstrip())
    # Kernels of one short name differ in more than can be told in few words: nothing less than the row names it.
    return Item((tuple(spans),), row, copy)


def launch_listing(row: LaunchRow, width: int) -> Listing:
    """One row in full: what, how often, how long, and from where."""
    stage = _place(row) if row.rank is None else f"{_place(row)} TP{row.rank.tp}"
    gpu_ms = None if row.gpu_us is None else row.gpu_us / 1000
    mean_us = row.gpu_us / row.count if row.gpu_us is not None and row.count else None
    head: list[Line] = [
        ((" ", ""), (clean(row.name), "bold")),
        ((" ", ""), *joined([(stage, ""), (row.kind, f"{_role(row)} bold"), (row.provenance, "dim")])),
    ]
    if row.reason:
        head += [((" ", ""), (line, "warn")) for line in wrapped(row.reason, max(20, width - 2))]
    facts: list[tuple[str, str]] = [
        ("launches", f"{number(row.count)} in {number(row.steps)} steps, {per_step(row)} a step"),
        ("launched by", clean(row.call or UNKNOWN)),
        (
            "GPU time",
            f"{number(gpu_ms, 'ms', 3)} in all, {number(mean_us, 'µs', 1)} each, at most {number(row.longest_us, 'µs', 1)}",
        ),
        ("share", f"{percent(row.share)} of the stage's GPU time"),
        ("gap before", f"{number(row.gap_us, 'µs', 1)} on average, its stream idle"),
        ("stream", clean(row.stream or UNKNOWN)),
        ("operator", clean(row.op or UNKNOWN)),
        ("line", site(row) if row.file else f"{UNKNOWN}  (a burst with Python stacks names it)"),
    ]
    items = [Item((((" " + left(name, 13), "dim"), (text, "")),), name, f"{name}: {text}") for name, text in facts]
    if row.stack:
        items.append(Item((((" stack, innermost first", "dim"),),)))
    items += [
        Item(
            (((f" {depth:>3}  ", "faint"), (cut_left(frame, max(10, width - 8)), "bold" if not depth else "")),),
            (depth, frame),
            frame,
        )
        for depth, frame in enumerate(reversed(row.stack))
    ]
    return Listing(tuple(items), tuple(head))
