"""The launches panel: which kernel launches are eager, from which Python line and why."""

from __future__ import annotations

from collections.abc import Sequence

from ppscope.views import LaunchRow
from ppscope.widgets.listing import Item, Listing
from ppscope.widgets.panel_stacks import short_file
from ppscope.widgets.text import UNKNOWN, Line, clean, cut_left, left, number, right, wrapped

EMPTY = (
    "No launches have been seen. Kernel launches are known only from a profiler burst or a trace file:",
    "  ppscope trace DIR                what is in traces already written by /start_profile",
    "  ppscope launch -- CMD            a server started with the exact probe",
    "Until then the stacks tell graph replay from eager launches: see the Gantt and panel 3.",
)


def launches_listing(rows: Sequence[LaunchRow], can_burst: bool, width: int) -> Listing:
    """One item per launch site, those that cost most first; without any, how to get them."""
    if not rows:
        text = list(EMPTY)
        if can_burst:
            text.insert(1, "  p                                a burst of the running server, a few steps long")
        lines: list[Line] = [((f"  {row}", "dim"),) for row in text]
        return Listing((Item(tuple(lines)),))
    head: Line = (
        (" " + left("kind", 8), "dim"), (right("launches", 10), "dim"), (right("GPU ms", 10), "dim"), ("  " + left("site", 44), "dim"),
        ("what", "dim"),
    )  # fmt: skip
    ordered = sorted(rows, key=lambda row: (row.kind != "eager", -(row.gpu_us or 0.0), -row.count))
    return Listing(tuple(_item(row, width) for row in ordered), (head,))


def _item(row: LaunchRow, width: int) -> Item:
    site = UNKNOWN if row.file is None else f"{short_file(row.file)}:{number(row.line)}"
    gpu_ms = None if row.gpu_us is None else row.gpu_us / 1000
    lines: list[Line] = [(
        (" " + left(row.kind, 8), "bad" if row.kind == "eager" else "good"),
        (right(number(row.count), 10), ""),
        (right(number(gpu_ms, digits=2), 10), ""),
        ("  " + left(cut_left(site, 43), 44), "accent"),
        (clean(row.name), "dim"),
    )]  # fmt: skip
    if row.reason:
        lines += [(("          ", ""), (text, "warn")) for text in wrapped(row.reason, max(20, width - 12))]
    copy = clean(f"{row.kind} {row.count}× {site} {row.name} {row.reason or ''}".rstrip())
    return Item(tuple(lines), (row.kind, row.name, row.file, row.line), copy)
