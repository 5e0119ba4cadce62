"""The thin lines around the content: time axis, legend, tabs, footer."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ppscope.keys import FOOTER_GLYPHS, KEYS
from ppscope.widgets.look import Look
from ppscope.widgets.rows import PROVENANCE_MARK
from ppscope.widgets.text import Line, Span, clean, crop, elapsed, percent, spread, width_of

PANELS = ("findings", "launches", "stacks", "gpus", "server")

TICKS_NS = (*(step * 10**power for power in range(6, 11) for step in (1, 2, 5)), 60 * 10**9, 120 * 10**9)


def axis(
    start_ns: int, column_ns: int, columns: int, origin_ns: int, now_column: int | None, chosen: int | None
) -> list[Span]:
    """The time axis, a span a column: ticks in time since the attach, `▾` at now, `▲` at the chosen span."""
    chars = [" "] * columns
    step = next((tick for tick in sorted(TICKS_NS) if tick >= 12 * column_ns), TICKS_NS[-1])
    digits = 0 if step % 1_000_000_000 == 0 else 1 if step % 100_000_000 == 0 else 2 if step % 10_000_000 == 0 else 3
    tick = ((start_ns - origin_ns) // step) * step
    while (column := (tick + origin_ns - start_ns) // column_ns) < columns:
        if column >= 0 and tick >= 0:
            text = f"┊{elapsed(tick, digits)}"
            hit = any(at is not None and column <= at < column + len(text) for at in (now_column, chosen))
            if hit:
                text = text[:1]
            if column + len(text) <= columns:
                chars[column : column + len(text)] = list(text)
        tick += step
    roles = ["faint" if char == "┊" else "dim" for char in chars]
    for column_at, char, role in ((now_column, "▾", "accent bold"), (chosen, "▲", "warn bold")):
        if column_at is not None and 0 <= column_at < columns:
            chars[column_at], roles[column_at] = char, role
    return list(zip(chars, roles, strict=True))


def legend_line(
    look: Look,
    seen: Collection[int],
    provenance: Collection[str],
    other: float | None,
    width: int,
    single: bool = False,
) -> Line:
    """How the phases seen so far are drawn, with their names, then what the marks mean and the share no rule names.

    `single`: the lanes show single spans, by glyph; otherwise work is a height in its phase's colour, where there is colour.
    """
    plain = look.ascii or look.colours == "none"
    items: list[Line] = []
    for index in sorted(seen, key=lambda index: (look.phases[index].kind != "work", index)):
        phase = look.phases[index]
        by_height = phase.kind == "work" and not plain and not single
        glyph = "▇" if by_height else phase.ascii if look.ascii else phase.glyph
        items.append(((glyph[:1], f"p{index}"), (f" {clean(phase.label)}", "dim"), ("  ", "")))
    digits: Line = ((" 0-9 ", "bold"), ("micro-batch" if single else "tenths of work", "dim")) if plain else ()
    marks = tuple(
        span
        for name in ("exact", "sampled", "inferred")
        if name in provenance
        for span in ((f" {PROVENANCE_MARK[name]} ", "dim"), (name, "dim"))
    )
    unnamed: Line = ()
    if other is not None:
        unnamed = (("  unnamed ", "dim"), (percent(other), "warn" if other > 0.1 else "dim"))
    # What is drawn comes first; the rest gives way, but for a share that is too large.
    needed = digits + (unnamed if other is not None and other > 0.1 else ())
    for tail in (digits + marks + unnamed, digits + marks, needed):
        if sum(map(width_of, items)) + width_of(tail) + 3 <= width:
            break
    return spread(_fitting(items, width - width_of(tail) - 3), (*tail, (" ", "")), width)


def _fitting(items: Sequence[Line], room: int) -> Line:
    """As many items as fit, and how many more there are."""
    spans: list[Span] = [(" ", "")]
    for place, item in enumerate(items):
        more = f"+{len(items) - place}, see ?"
        if width_of(spans) + width_of(item) > room - (0 if place == len(items) - 1 else len(more)):
            spans.append((more, "faint"))
            break
        spans += item
    return tuple(spans)


def tabs_line(panel: int, focused: bool, note: str, width: int) -> Line:
    """The five panels, the open one underlined by colour; at the right a note such as the place in a list."""
    spans: list[Span] = [(" ", "")]
    for number, name in enumerate(PANELS, start=1):
        if number == panel:
            spans += [("▸" if focused else " ", "accent"), (f"{number} {name}", "tab")]
        else:
            spans += [(" ", ""), (f"{number} ", "faint"), (name, "dim")]
        spans.append(("  ", ""))
    return spread(tuple(spans), ((clean(note), "dim"), (" ", "")), width)


def crumbs_line(crumbs: Sequence[str], note: str, width: int) -> Line:
    """The way down to what is shown, in place of the tabs."""
    spans: list[Span] = [("  ", "")]
    for place, crumb in enumerate(crumbs):
        last = place == len(crumbs) - 1
        spans.append((clean(crumb), "tab" if last else "dim"))
        if not last:
            spans.append((" › ", "faint"))
    return spread(crop(tuple(spans), width - len(note) - 3), ((clean(note), "dim"), (" ", "")), width)


def footer_line(able: Collection[str], message: Span | None, width: int) -> Line:
    """The keys that matter most, as many as fit; a message takes their place for a while."""
    if message:
        return crop(((" ", ""), message), width)
    spans: list[Span] = [(" ", "")]
    keys = [key for key in KEYS if key.footer and (not key.needs or key.needs in able)]
    order = {"quit": 0, "help": 1}
    ranked = sorted(keys, key=lambda key: order.get(key.action, 2))
    room = width - 1
    kept: set[str] = set()
    for key in ranked:
        size = len(FOOTER_GLYPHS.get(key.action, key.show.split()[0])) + 1 + len(key.footer) + 2
        if size <= room:
            kept.add(key.action)
            room -= size
    for key in keys:
        if key.action in kept:
            shown = FOOTER_GLYPHS.get(key.action, key.show.split()[0])
            spans += [(shown, "key"), (f" {key.footer}", "dim"), ("  ", "")]
    return tuple(spans)
