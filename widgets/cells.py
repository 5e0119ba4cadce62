"""Gantt cells as text: the level of detail of one lane."""

from __future__ import annotations

from collections.abc import Sequence

from ppscope.views import Cell, PhaseStyle
from ppscope.widgets.look import Look
from ppscope.widgets.text import BLOCKS, Line, Span

TILE = 8
"""Columns of a tile. A partial update always starts at a widget's left edge, so lanes are cut into narrow widgets."""

SPAN_COLUMN_NS = 10_000_000
"""From this column width down a lane shows single spans with their micro-batch number."""

VISIBLE_WORK = 0.06
"""Below this share of work a waiting cell shows its wait alone."""


def lane_line(cells: Sequence[Cell], column_ns: int, look: Look, work_phase: int | None) -> list[Span]:
    """One span a column: single spans when zoomed in, otherwise the work share as block height in the dominant phase's colour.

    `work_phase` gives its colour to the little work seen in a cell that mostly waits.
    """
    if column_ns <= SPAN_COLUMN_NS:
        return _single_spans(cells, look)
    return [_summed(cell, look, work_phase) for cell in cells]


def _summed(cell: Cell, look: Look, work_phase: int | None) -> Span:
    if cell.mark == "eager":
        return "e", "bad bold"
    phase = look.phase(cell.phase)
    if phase is None:
        return " ", ""
    if phase.kind == "work":
        return _work(phase, 1.0 if cell.work is None else cell.work, look), f"p{cell.phase}"
    if cell.work is not None and cell.work >= VISIBLE_WORK:
        role = "" if work_phase is None else f"p{work_phase}"
        # Without colour or blocks a digit says how many tenths were work: block heights would read as phases.
        plain = look.ascii or look.colours == "none"
        return (str(max(1, round(cell.work * 10))) if plain else _block(cell.work)), role
    return _glyph(phase, look), f"p{cell.phase}"


def _work(phase: PhaseStyle, share: float, look: Look) -> str:
    if look.ascii or look.colours == "none":
        return _glyph(phase, look)
    return _block(share)


def _block(share: float) -> str:
    # Seven eighths at most: lanes above each other must not run together.
    return BLOCKS[max(1, min(7, round(share * 7)))]


def _glyph(phase: PhaseStyle, look: Look) -> str:
    return (phase.ascii if look.ascii else phase.glyph)[:1] or " "


def _single_spans(cells: Sequence[Cell], look: Look) -> list[Span]:
    out: list[Span] = []
    start = 0
    named: int | None = None
    while start < len(cells):
        first = cells[start]
        end = start + 1
        while end < len(cells) and _same(first, cells[end]):
            end += 1
        phase = look.phase(first.phase)
        work = phase is not None and phase.kind == "work"
        # A batch is named where its work begins, not again in each of its phases.
        label = "" if first.micro_batch is None or not work or named == first.micro_batch else str(first.micro_batch)
        named = first.micro_batch if work else None
        out.extend(_span(first, end - start, label, look))
        start = end
    return out


def _same(first: Cell, other: Cell) -> bool:
    return (first.phase, first.micro_batch, first.mark) == (other.phase, other.micro_batch, other.mark)


def _span(cell: Cell, width: int, label: str, look: Look) -> list[Span]:
    phase = look.phase(cell.phase)
    if phase is None:
        return [(" ", "")] * width
    role = f"p{cell.phase}"
    spans: list[Span] = [("e", "bad bold")] if cell.mark == "eager" else []
    if len(label) + len(spans) <= width:
        spans = [*((char, f"{role} bold") for char in label), *spans]
    return [*spans, *([(_glyph(phase, look).replace("█", "▇"), role)] * (width - len(spans)))]


def tiles(spans: Sequence[Span], count: int) -> list[Line]:
    """A lane's columns cut into tiles, neighbours of one role joined."""
    out: list[Line] = []
    for index in range(count):
        row: list[Span] = []
        for text, role in spans[index * TILE : (index + 1) * TILE]:
            if row and row[-1][1] == role:
                row[-1] = (row[-1][0] + text, role)
            else:
                row.append((text, role))
        out.append(tuple(row))
    return out
