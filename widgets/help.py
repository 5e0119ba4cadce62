"""The help: every key from the one table, every phase with its glyph."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from ppscope.keys import KEYS
from ppscope.widgets.listing import Item, Listing, Pane
from ppscope.widgets.look import Look
from ppscope.widgets.rows import PROVENANCE_MARK
from ppscope.widgets.text import Line, Span, clean, left, width_of

MEANING = {
    "work": "work of the scheduler's thread (host time, not GPU time)",
    "wait": "waits",
    "idle": "nothing to do",
    "starting": "before the scheduler's loop",
    "other": "no rule names it",
    "frozen": "the profiler writes its trace",
}


def help_listing(able: Collection[str], look: Look, width: int) -> Listing:
    """Keys by group, then phases and marks; two columns where there is room."""
    keys: list[Line] = []
    group = ""
    for key in KEYS:
        if key.needs and key.needs not in able:
            continue
        if key.group != group:
            keys += [*([()] if group else []), ((f" {key.group}", "accent bold"),)]
            group = key.group
        keys.append(((f"   {left(key.show, 7)}", "key"), (key.help, "")))
    legend: list[Line] = [((" Phases, from stacks", "accent bold"),)]
    for index, phase in enumerate(look.phases):
        glyph = phase.ascii if look.ascii else phase.glyph
        legend.append(
            (
                (f"   {glyph[:1]} ", f"p{index}"),
                (left(clean(phase.label), 26), ""),
                (MEANING.get(phase.name, MEANING.get(phase.kind, "")), "dim"),
            )
        )
    legend += [
        (),
        ((" Marks", "accent bold"),),
        (("   e ", "bad bold"), ("an eager launch where a replay was expected", "")),
        (
            ("   ▁▇ " if look.colours != "none" and not look.ascii else "   1-9 ", ""),
            ("zoomed out: share of the cell that was work", ""),
        ),
        (("   7 ", "bold"), ("zoomed in: micro-batch number", "")),
    ]
    legend += [((f"   {mark} ", ""), (name, ""), (_PROVENANCE[name], "dim")) for name, mark in PROVENANCE_MARK.items()]
    if width < 130:
        lines = [*keys, (), *legend]
    else:
        half = 66
        lines = []
        for row in range(max(len(keys), len(legend))):
            start = keys[row] if row < len(keys) else ()
            gap: Span = (" " * max(1, half - width_of(start)), "")
            lines.append((*start, gap, *(legend[row] if row < len(legend) else ())))
    return Listing(tuple(Item((line,)) for line in lines))


_PROVENANCE = {
    "exact": ": by the probe or the profiler",
    "sampled": ": by stacks, edges off by one sampling period",
    "inferred": ": micro-batch numbers between two dumps",
}


class HelpScreen(ModalScreen[None]):
    """All keys and glyphs; any of Esc, ? or Enter closes it."""

    DEFAULT_CSS = "HelpScreen { background: $background; } HelpScreen Pane { height: 100%; padding: 1 2; }"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,enter,space", "close", show=False),
        Binding("q", "app.quit", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("pagedown", "scroll(12)", show=False),
        Binding("pageup", "scroll(-12)", show=False),
    ]

    def __init__(self, look: Look, able: Collection[str]) -> None:
        super().__init__()
        self.look = look
        self.able = frozenset(able)
        self._pane = HelpPane(look)

    def compose(self) -> ComposeResult:
        """One pane."""
        yield self._pane

    def on_resize(self) -> None:
        """Lay the columns out for the new width."""
        self.call_after_refresh(self._fill)

    def _fill(self) -> None:
        self._pane.show_listing(help_listing(self.able, self.look, self._pane.size.width), focused=False)

    def action_close(self) -> None:
        """Back to the screen below."""
        self.dismiss()

    def action_scroll(self, by: int) -> None:
        """Scroll by rows."""
        self._pane.scroll_rows(by)


class HelpPane(Pane):
    """A pane without a cursor: it scrolls by rows."""

    def scroll_rows(self, by: int) -> None:
        """Move the first row."""
        room = self._room()
        last = max(0, len(self.listing.items) - room)
        self.top = max(0, min(self.top + by, last))
        self.chosen = min(self.top + (room - 1 if by > 0 else 0), len(self.listing.items) - 1)
        self._draw()
