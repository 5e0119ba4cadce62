"""The help: every key and every figure from their tables, every phase with its glyph."""

from __future__ import annotations

from collections.abc import Collection
from itertools import zip_longest
from typing import ClassVar

from textual.binding import Binding, BindingType

from ppscope.keys import KEYS
from ppscope.widgets.listing import Item, Listing
from ppscope.widgets.look import Look
from ppscope.widgets.rows import PROVENANCE_MARK
from ppscope.widgets.text import Line, Span, clean, left, width_of, wrapped
from ppscope.widgets.text_screen import TextScreen
from ppscope.words import WORDS

MEANING = {
    "work": "work on the host, not GPU time",
    "wait": "waits",
    "idle": "nothing to do",
    "starting": "before the scheduler's loop",
    "other": "no rule names it",
    "frozen": "the profiler writes its trace",
}


COLOUR_ALONE = (
    "Where colours do not tell phases apart for you: + zooms in to the glyphs above, NO_COLOR=1 in the environment draws"
    " them always, --ascii draws letters"
)
"""Said where work is a height in a colour: how each phase gets a sign of its own."""

KEY, GLYPH = 10, 5
"""Cells before the text of a key, and of a phase or mark."""
LEGEND = 91
"""Cells that the legend takes where nothing in it has to be broken."""


def help_listing(able: Collection[str], look: Look, width: int) -> Listing:
    """Keys by group, then phases, marks and figures; two columns where there is room."""
    if width < 130:
        lines = [*_keys(able, width), (), *_legend(look, width)]
    else:
        half = max(58, width - LEGEND)
        keys, legend = _keys(able, half - 2), _legend(look, width - half)
        lines = []
        for start, end in zip_longest(keys, legend, fillvalue=()):
            gap: Span = (" " * (half - width_of(start)), "")
            lines.append((*start, gap, *end))
    return Listing(tuple(Item((line,)) for line in lines))


def _keys(able: Collection[str], width: int) -> list[Line]:
    lines: list[Line] = []
    group = ""
    for key in KEYS:
        if key.needs and key.needs not in able:
            continue
        if key.group != group:
            lines += [*([()] if group else []), ((f" {key.group}", "accent bold"),)]
            group = key.group
        lines += _hanging(((f"   {left(key.show, 7)}", "key"),), key.help, "", width, KEY)
    return lines


def _legend(look: Look, width: int) -> list[Line]:
    lines: list[Line] = [((" Phases, from stacks", "accent bold"),)]
    label = max(width_of(((clean(phase.label), ""),)) for phase in look.phases) + 1
    for index, phase in enumerate(look.phases):
        glyph = phase.ascii if look.ascii else phase.glyph
        start: Line = ((f"   {glyph[:1]} ", f"p{index}"), (left(clean(phase.label), label), ""))
        lines += _hanging(start, MEANING.get(phase.name, MEANING.get(phase.kind, "")), "dim", width, GLYPH + label)
    plain = look.colours == "none" or look.ascii
    share = "   1-9" if plain else "   ▁▇"
    in_colour = "" if plain else f", in its phase's colour. {COLOUR_ALONE}"
    marks: list[tuple[Line, str]] = [
        ((("   e", "bad bold"),), "an eager launch where a replay was expected"),
        (((share, ""),), f"zoomed out: share of the cell that was work{in_colour}"),
        ((("   7", "bold"),), "zoomed in: micro-batch number"),
        *(((((f"   {mark}", ""),), name + _PROVENANCE[name])) for name, mark in PROVENANCE_MARK.items()),
    ]
    lines += [(), ((" Marks", "accent bold"),)]
    for mark, text in marks:
        lines += _hanging((*mark, (" " * (7 - width_of(mark)), "")), text, "", width, 7)
    lines += [(), ((" Figures and signs", "accent bold"),)]
    shown = max(len(word.show) for word in WORDS) + 2
    for word in WORDS:
        lines += _hanging(((f"   {left(word.show, shown)}", ""),), word.means, "dim", width, 3 + shown)
    return lines


def _hanging(start: Line, text: str, style: str, width: int, indent: int) -> list[Line]:
    """A line that goes on under its own text where the width ends."""
    first, *more = wrapped(text, max(1, width - indent)) or [""]
    return [(*start, (first, style)), *(((" " * indent, ""), (row, style)) for row in more)]


_PROVENANCE = {
    "exact": ": by the probe or the profiler",
    "sampled": ": by stacks, edges off by one sampling period",
    "inferred": ": micro-batch numbers between two dumps",
}


class HelpScreen(TextScreen[None]):
    """All keys and glyphs; any of Esc, ? or Enter closes it."""

    DEFAULT_CSS = "HelpScreen TextPane { padding: 1 2 0 2; } HelpScreen #text-foot { padding: 0 2; }"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,enter,space", "close", show=False),
        Binding("j", "scroll(1)", show=False),
        Binding("k", "scroll(-1)", show=False),
    ]

    def __init__(self, look: Look, able: Collection[str]) -> None:
        super().__init__(look)
        self.able = frozenset(able)

    def fill(self) -> None:
        """Lay the columns out for the width."""
        self.pane.show_listing(help_listing(self.able, self.look, self.pane.size.width), focused=False)
        self.tell()

    def action_close(self) -> None:
        """Back to the screen below."""
        self.dismiss()

    def tell(self) -> None:
        """Where in the text one is, and the keys."""
        where = self.pane.where
        keys = " Esc back" if not where else " ↑↓ PgUp PgDn Home End scroll   Esc back"
        self.foot.show([((keys, "dim"), (f"   {where}" if where else "", "dim"))])
